#include "titan/job/updates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <regex>

#include "titan/base/text.h"

namespace titan {
namespace {

bool is_muon(const OptimizerSection& optimizer) { return optimizer.name == OptimizerKind::muon; }

bool takes_muon(UnitRole role, const ParameterSpec& spec) { return role == UnitRole::block && spec.shape.size() == 2; }

std::vector<StatisticDescription> muon_statistics(std::span<const ParameterSpec> matrices, bool measures) {
  std::vector<StatisticDescription> statistics;
  const auto add = [&](const std::string& name, double divisor) -> StatisticDescription& {
    StatisticDescription& added = statistics.emplace_back();
    added.name = name;
    added.divisor = divisor;
    added.on_console = false;
    return added;
  };
  for (const ParameterSpec& matrix : matrices) {
    const std::string name = kUpdateRms + kind_of_matrix(matrix.name);
    const auto same =
        std::find_if(statistics.begin(), statistics.end(), [&](const auto& one) { return one.name == name; });
    StatisticDescription& mine = same == statistics.end() ? add(name, 0) : *same;
    mine.is_root = true;
    mine.divisor += static_cast<double>(matrix.numel());
  }
  if (!measures) return statistics;
  for (const char* name : {kSingularValue, kMeasuredMatrix}) add(name, 1);
  return statistics;
}

/// What coefficients that do not orthogonalise make of a singular value. Each is changed by itself: x ← ax + bx³ + cx⁵.
std::optional<std::string> what_iteration_misses(const MuonSection& muon) {
  // The published coefficients stay below 1.3, those for one step of several below 2. What is larger is multiplied by
  // up to x⁵ in the next step.
  constexpr double kLargest = 2, kLeft = 0.1;
  constexpr int kValues = 1000;  // in (0, 1], which is where a matrix's singular values are after the division
  const double a = muon.ns_coefficients[0], b = muon.ns_coefficients[1], c = muon.ns_coefficients[2];
  double most = 0;
  for (int i = kValues; i > 0; --i) {
    const double start = static_cast<double>(i) / kValues;
    double x = start;
    for (int64_t step = 1; step <= muon.ns_steps; ++step) {
      const double square = x * x;
      x *= a + (b + c * square) * square;
      if (!(std::abs(x) <= kLargest)) {
        return fmt::format("{:.3g} of a singular value of {} in iteration {}", x, start, step);
      }
    }
    most = std::max(most, std::abs(x));
  }
  if (most >= kLeft) return std::nullopt;
  return fmt::format("{:.2g} at most of every singular value in {} iterations", most, muon.ns_steps);
}

void refuse_combinations(const JobConfig& config, const Origins& origins, std::vector<Problem>& problems) {
  const auto refuse = [&](const char* option, const std::string& why, const char* remedy) {
    problems.push_back(origins.problem(option, why, remedy));
  };
  if (config.optimizer.early_step_in_backward) {
    refuse("optimizer.early_step_in_backward",
           "optimizer.early_step_in_backward steps a block before the gradients of the others are computed, and "
           "optimizer.name = \"Muon\" exchanges matrices when all gradients are",
           "set it to false, or choose AdamW");
  }
  if (config.training.enable_cpu_offload) {
    refuse("training.enable_cpu_offload",
           "training.enable_cpu_offload keeps gradients on the host, and optimizer.name = \"Muon\" needs them on the "
           "device",
           "set it to false; optimizer.offload = true keeps the moments alone on the host");
  }
  if (config.optimizer.lr == 0) {
    refuse("optimizer.lr",
           "optimizer.lr = 0 with optimizer.name = \"Muon\": the rate of the matrices follows the schedule of this one",
           "give it a rate; lr_multiplier = 0 in a group of optimizer.param_groups freezes parameters");
  }
  if (const auto missed = what_iteration_misses(config.optimizer.muon)) {
    refuse("optimizer.muon.ns_coefficients",
           fmt::format("optimizer.muon.ns_coefficients = {} makes {}, and should make about 1",
                       fmt::join(config.optimizer.muon.ns_coefficients, ","), *missed),
           "choose others, such as 3.4445,-4.775,2.0315 (the default) or 2,-1.5,0.5 with more "
           "optimizer.muon.ns_steps");
  }
  if (config.optimizer.muon.lr == 0) {
    refuse("optimizer.muon.lr", "optimizer.muon.lr = 0 with optimizer.name = \"Muon\" steps no matrix",
           "give it a rate, or choose AdamW");
  }
}

/// What a parameter is that Muon does not step.
std::string what_it_is(const ModelDescription& model, const UnitDescription& unit, const ParameterSpec& parameter) {
  if (parameter.shape.size() != 2) return "no matrix";
  if (unit.role != UnitRole::embedding) return "the head, whose rows are one token's each";
  const bool is_tied = std::any_of(model.units.begin(), model.units.end(), [&](const UnitDescription& other) {
    return std::find(other.borrowed.begin(), other.borrowed.end(), parameter.name) != other.borrowed.end();
  });
  return fmt::format("an embedding{}, whose rows are looked up, not multiplied",
                     is_tied ? " and, being tied, the head" : "");
}

/// UpdateDescription::bytes_on_cpu of matrices that are iterated in this type.
int64_t update_bytes_on_cpu(ElementType type, std::span<const MatrixShape> matrices, int64_t threads, bool exchanged) {
  // An iteration is in fp32 where a processor's products of bf16 are slower, which is planned for all. It holds X, the
  // next X, XXᵀ and the polynomial of it; from bf16 also X before it was widened, and a product that is being rounded.
  const int64_t of_x = type == ElementType::float32 ? 8 : 12;
  std::vector<int64_t> small;
  int64_t elements = 0, largest = 0, large = 0;
  for (const auto& [rows, columns] : matrices) {
    const int64_t numel = rows * columns, shorter = std::min(rows, columns);
    const int64_t bytes = of_x * numel + 8 * shorter * shorter;
    elements += numel;
    largest = std::max(largest, numel);
    if (numel > kSmallMatrix) large = std::max(large, bytes);
    if (numel <= kSmallMatrix) small.push_back(bytes);
  }
  std::sort(small.rbegin(), small.rend());
  small.resize(std::min(small.size(), static_cast<size_t>(threads)));
  const int64_t iterated = std::max(large, std::accumulate(small.begin(), small.end(), int64_t{0}));
  if (exchanged) return iterated;
  return iterated + 2 * size_of(type) * std::min(elements, std::max(kElementsAtOnce, largest));
}

}  // namespace

std::string rates_to_lower(const OptimizerSection& optimizer) {
  return is_muon(optimizer) ? "optimizer.lr and optimizer.muon.lr" : "optimizer.lr";
}

std::string kind_of_matrix(const std::string& name) {
  std::vector<std::string> parts = split(name, '.');
  if (parts.size() > 1 && parts.back() == "weight") parts.pop_back();
  return parts.back();
}

double newton_schulz_operations(int64_t steps, int64_t rows, int64_t columns) {
  const auto shorter = static_cast<double>(std::min(rows, columns)),
             longer = static_cast<double>(std::max(rows, columns));
  // XXᵀ and the product with X take 2·s²·l each, the square of XXᵀ 2·s³.
  return static_cast<double>(steps) * (4 * shorter * shorter * longer + 2 * shorter * shorter * shorter);
}

std::vector<UpdateDescription> update_descriptions(const OptimizerSection& optimizer) {
  std::vector<UpdateDescription> updates(1);
  if (!is_muon(optimizer)) {
    updates[0].optimizer = optimizer.name;
    return updates;
  }
  UpdateDescription muon{.optimizer = OptimizerKind::muon, .moments = {"momentum_buffer"}, .counts_steps = false};
  muon.whole_matrices = true;
  muon.matrix_type = optimizer.muon.dtype;
  // In fp32 the iteration holds five matrices at once: its input, X, the next X, XXᵀ and b·XXᵀ + c·(XXᵀ)², of which the
  // last two are at most as large as X. In bf16 the peak is outside the iteration, where the momentum, the clipped
  // gradient, their mean and the new weight are in fp32: eight bf16 matrices.
  muon.working_matrices = optimizer.muon.dtype == ElementType::float32 ? 5 : 8;
  muon.bytes_on_cpu = [type = muon.matrix_type](std::span<const MatrixShape> matrices, int64_t threads,
                                                bool exchanged) {
    return update_bytes_on_cpu(type, matrices, threads, exchanged);
  };
  muon.operations = [steps = optimizer.muon.ns_steps](int64_t rows, int64_t columns) {
    return newton_schulz_operations(steps, rows, columns);
  };
  muon.rate_share = optimizer.lr > 0 ? optimizer.muon.lr / optimizer.lr : 0;
  muon.rate_name = "muon_lr";
  muon.statistics = [measures = optimizer.muon.singular_value_freq > 0](std::span<const ParameterSpec> matrices) {
    return muon_statistics(matrices, measures);
  };
  updates.push_back(std::move(muon));
  return updates;
}

std::function<size_t(UnitRole, const ParameterSpec&)> update_choice(const OptimizerSection& optimizer) {
  if (!is_muon(optimizer)) return [](UnitRole, const ParameterSpec&) { return kAdamUpdate; };
  struct Rule {
    std::regex pattern;
    GroupUpdate update;
  };
  auto rules = std::make_shared<std::vector<Rule>>();  // patterns are compiled once, and the choice is copied
  for (const ParamGroup& group : optimizer.param_groups) {
    if (group.update == GroupUpdate::by_kind) continue;
    try {
      rules->push_back({std::regex(group.match), group.update});
    } catch (const std::regex_error&) {  // assign_parameter_groups reports it
    }
  }
  return [rules](UnitRole role, const ParameterSpec& spec) {
    for (const Rule& rule : *rules) {
      if (std::regex_search(spec.name, rule.pattern)) {
        return rule.update == GroupUpdate::muon ? kMuonUpdate : kAdamUpdate;
      }
    }
    return takes_muon(role, spec) ? kMuonUpdate : kAdamUpdate;
  };
}

std::string shared_work(const OptimizerSection& optimizer, const ModelDescription& model) {
  if (!is_muon(optimizer)) return {};
  const auto choice = update_choice(optimizer);
  std::array<size_t, 2> tensors{};  // by update
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.trainable) ++tensors[choice(unit.role, parameter)];
    }
  }
  return fmt::format("Muon steps {} {}, AdamW {} other tensor{}", tensors[kMuonUpdate],
                     tensors[kMuonUpdate] == 1 ? "matrix" : "matrices", tensors[kAdamUpdate],
                     tensors[kAdamUpdate] == 1 ? "" : "s");
}

std::vector<Problem> update_problems(const JobConfig& config, const ModelDescription& model, const Origins& origins) {
  std::vector<Problem> problems;
  const OptimizerSection& optimizer = config.optimizer;
  if (!is_muon(optimizer)) {
    for (const ParamGroup& group : optimizer.param_groups) {
      if (group.update == GroupUpdate::by_kind) continue;
      problems.push_back(origins.problem(
          "optimizer.param_groups",
          fmt::format(
              "optimizer.param_groups: \"{}\" has update = \"{}\", and optimizer.name = \"{}\" steps everything",
              group.match, word_of(group.update), word_of(optimizer.name)),
          "leave update out, or set optimizer.name = \"Muon\""));
    }
    return problems;
  }
  refuse_combinations(config, origins, problems);
  const auto choice = update_choice(optimizer);
  size_t matrices = 0;
  std::map<std::string, std::vector<std::string>> wrong;  // by what they are
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (choice(unit.role, parameter) != kMuonUpdate) continue;
      if (parameter.trainable) ++matrices;
      if (!takes_muon(unit.role, parameter)) wrong[what_it_is(model, unit, parameter)].push_back(parameter.name);
    }
  }
  for (const auto& [what, names] : wrong) {
    const size_t others = names.size() - 1;
    const std::string more =
        others > 0 ? fmt::format(", and for {} other{} of the kind", others, others == 1 ? "" : "s") : "";
    problems.push_back(
        origins.problem("optimizer.param_groups",
                        fmt::format("optimizer.param_groups asks Muon for {}, which is {}{}", names[0], what, more),
                        "make the pattern narrower: Muon steps the matrices of blocks"));
  }
  if (matrices == 0) {
    problems.push_back(origins.problem("optimizer.name", "optimizer.name = \"Muon\" has no matrix to step",
                                       "choose AdamW, or let optimizer.param_groups leave it some"));
  }
  return problems;
}

}  // namespace titan
