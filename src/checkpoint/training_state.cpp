#include "titan/checkpoint/training_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/checkpoint/tensor_source.h"

namespace titan {
namespace {

constexpr const char* kOptimizerStates = "optimizer.state.";
/// The prefix of the model's names until July 2025.
constexpr const char* kFormerPrefix = "model.";

std::string state_key(const std::string& name, std::string_view what) {
  return fmt::format("{}{}.{}", kOptimizerStates, name, what);
}

/// The optimizer's step count of a parameter, on the ranks that hold a part of it. It is a copy, because
/// training continues to count while the checkpoint is written.
void add_steps(CheckpointState& state, const SavedParameter& parameter, int64_t step) {
  const BoxOfRank box_of = [whole = parameter.box_of](int64_t rank) -> std::optional<Box> {
    return whole(rank) ? std::optional(Box{}) : std::nullopt;
  };
  const at::Tensor count = parameter.steps.defined() ? parameter.steps.clone() : at::scalar_tensor(step, at::kFloat);
  const bool holds = parameter.master.defined();
  state.tensors.push_back({{state_key(parameter.name, "step"), at::kFloat, {}}, box_of, holds ? count : at::Tensor()});
}

at::ScalarType type_of(const at::Tensor& held, at::ScalarType of_others) {
  return held.defined() ? held.scalar_type() : of_others;
}

/// A parameter's entry of the param_groups of torch's Adam and AdamW, flattened. `lr`: of the last step.
void add_settings(CheckpointState& state, const SavedParameter& parameter, const OptimizerSection& optimizer,
                  double lr) {
  const auto add = [&](const char* key, const PickleRef& value) {
    state.values.push_back({fmt::format("optimizer.param_groups.{}.{}", parameter.name, key), value_blob(value)});
  };
  add("lr", pickle::real(lr * parameter.lr_multiplier));
  add("initial_lr", pickle::real(optimizer.lr * parameter.lr_multiplier));
  add("betas", pickle::tuple({pickle::real(optimizer.beta1), pickle::real(optimizer.beta2)}));
  add("eps", pickle::real(optimizer.eps));
  add("weight_decay", pickle::real(optimizer.weight_decay * parameter.weight_decay_multiplier));
  for (const char* key : {"amsgrad", "maximize", "capturable", "differentiable"}) add(key, pickle::boolean(false));
  add("decoupled_weight_decay", pickle::boolean(optimizer.name != OptimizerKind::adam));
  const bool fused = optimizer.implementation == OptimizerImplementation::fused;
  const bool foreach = optimizer.implementation == OptimizerImplementation::foreach;
  add("fused", fused ? pickle::boolean(true) : pickle::none());
  add("foreach", fused ? pickle::none() : pickle::boolean(foreach));
}

/// The same of torch.optim.Muon.
void add_muon_settings(CheckpointState& state, const SavedParameter& parameter, const OptimizerSection& optimizer,
                       double lr) {
  const auto add = [&](const char* key, const PickleRef& value) {
    state.values.push_back({fmt::format("optimizer.param_groups.{}.{}", parameter.name, key), value_blob(value)});
  };
  const MuonSection& muon = optimizer.muon;
  const double peak = muon.lr * parameter.lr_multiplier;
  std::vector<PickleRef> coefficients;
  for (const double coefficient : muon.ns_coefficients) coefficients.push_back(pickle::real(coefficient));
  add("lr", pickle::real(peak * (lr / optimizer.lr)));
  add("initial_lr", pickle::real(peak));
  add("weight_decay", pickle::real(optimizer.weight_decay * parameter.weight_decay_multiplier));
  add("momentum", pickle::real(muon.momentum));
  add("nesterov", pickle::boolean(muon.nesterov));
  add("ns_coefficients", pickle::tuple(std::move(coefficients)));
  add("eps", pickle::real(muon.eps));
  add("ns_steps", pickle::integer(muon.ns_steps));
  add("adjust_lr_fn", pickle::text(std::string(word_of(muon.adjust_lr_fn))));
}

/// The state of torch's LambdaLR; on load the learning rate follows from the step. `base`, `last`: learning rates
/// before the schedule and of the last step.
void add_schedule(CheckpointState& state, double base, double last, int64_t step) {
  const auto add = [&](const char* key, const PickleRef& value) {
    state.values.push_back({fmt::format("lr_scheduler.{}", key), value_blob(value)});
  };
  add("base_lrs", pickle::list({pickle::real(base)}));
  add("last_epoch", pickle::integer(step));
  add("_step_count", pickle::integer(step + 1));
  add("_is_initial", pickle::boolean(false));
  add("_get_lr_called_within_step", pickle::boolean(false));
  add("_last_lr", pickle::list({pickle::real(last)}));
  add("lr_lambdas", pickle::list({pickle::none()}));
}

}  // namespace

bool holds_moments(const CheckpointIndex& index) {
  const auto first = index.tensors.lower_bound(kOptimizerStates);
  return first != index.tensors.end() && first->first.starts_with(kOptimizerStates);
}

CheckpointState describe_model(std::span<const SavedParameter> parameters) {
  CheckpointState state;
  for (const SavedParameter& parameter : parameters) {
    const at::ScalarType type = type_of(parameter.master, parameter.master_type);
    state.tensors.push_back({{parameter.name, type, parameter.shape}, parameter.box_of, parameter.master});
  }
  return state;
}

CheckpointState describe_run(std::span<const SavedParameter> parameters, const OptimizerSection& optimizer, double lr,
                             const SavedProgress& progress) {
  CheckpointState state = describe_model(parameters);
  double multiplier = 0;  // of the last parameter group: torch has one schedule for each
  for (const SavedParameter& parameter : parameters) {
    if (!parameter.trained) continue;
    multiplier = parameter.lr_multiplier;
    for (const auto& [moment, value] : parameter.moments) {
      const at::ScalarType type = type_of(value, parameter.moment_type);
      state.tensors.push_back({{state_key(parameter.name, moment), type, parameter.shape}, parameter.box_of, value});
    }
    if (parameter.counts_steps) add_steps(state, parameter, progress.step);
    parameter.optimizer == OptimizerKind::muon ? add_muon_settings(state, parameter, optimizer, lr)
                                               : add_settings(state, parameter, optimizer, lr);
  }
  add_schedule(state, optimizer.lr * multiplier, lr * multiplier, progress.step);
  CheckpointState rest = describe_progress(progress, TorchtitanRelease::february_2026);
  std::move(rest.tensors.begin(), rest.tensors.end(), std::back_inserter(state.tensors));
  std::move(rest.values.begin(), rest.values.end(), std::back_inserter(state.values));
  return state;
}

namespace {

class Restoration {
 public:
  Restoration(OpenCheckpoint& checkpoint, std::span<const SavedParameter> parameters, int64_t rank,
              std::vector<std::string>& notes, const std::set<std::string>& leave, int64_t data_rank, int64_t ranks)
      : checkpoint_(checkpoint),
        index_(checkpoint.index()),
        parameters_(parameters),
        rank_(rank),
        notes_(notes),
        leave_(leave),
        data_rank_(data_rank),
        ranks_(ranks) {}

  std::optional<SavedProgress> run() {
    const bool prefixed = std::any_of(parameters_.begin(), parameters_.end(), [&](const SavedParameter& parameter) {
      return index_.tensors.contains(kFormerPrefix + parameter.name);
    });
    if (prefixed) prefix_ = kFormerPrefix;
    if (wants("model")) {
      refuse_unknown_weights();
      add_model();
    }
    if (!holds_run(index_)) {
      notes_.emplace_back("the checkpoint holds only the model: optimizer, schedule and data start from the beginning");
      checkpoint_.load(targets_);
      check_rest();
      return std::nullopt;
    }
    if (wants("optimizer")) add_moments();
    const SavedProgress stored = read_progress(checkpoint_);
    checkpoint_.load(targets_);
    if (wants("optimizer")) take_steps(stored.step);
    if (wants("train_state")) {
      progress_ = stored;
      if (holds_past_losses(checkpoint_)) {
        notes_.emplace_back("its lists of past losses are not taken over");
      }
      if (!stored.tokens) notes_.emplace_back("it does not say how many tokens were seen: counting from 0");
      if (wants("dataloader")) read_data_position();
      progress_->guard = read_json(kGuardKey, "the spike guard's window");
      progress_->counters = read_json(kCountersKey, "its counters");
    }
    check_rest();
    return progress_;
  }

 private:
  bool wants(const char* state) const { return !leave_.contains(state); }

  /// `option`: the option that sets this run's dtype.
  void add(const std::string& name, at::ScalarType type, const SavedParameter& parameter, const at::Tensor& into,
           const char* option) {
    const auto found = index_.tensors.find(name);
    const bool convert = found != index_.tensors.end() && may_convert(found->second.tensor.type);
    if (found != index_.tensors.end() && !convert) refuse_other_type(name, found->second.tensor.type, type, option);
    const std::optional<Box> box = parameter.box_of(rank_);
    if (box && box->numel() > 0) targets_.push_back({{name, type, parameter.shape}, *box, into, convert});
  }

  /// Only weights are converted, since they may be exported in any dtype; a resumed run keeps its dtypes.
  bool may_convert(at::ScalarType stored) const {
    const bool is_number = stored == at::kFloat || stored == at::kBFloat16 || stored == at::kHalf;
    return !holds_run(index_) && is_number;
  }

  static void refuse_other_type(const std::string& name, at::ScalarType stored, at::ScalarType wanted,
                                const char* option) {
    const bool can_be_had = stored == at::kFloat || stored == at::kBFloat16;
    if (stored == wanted || !can_be_had) return;  // impossible conversions are rejected when read
    const auto words = [](at::ScalarType type) { return type == at::kFloat ? "float32" : "bfloat16"; };
    throw MismatchError(fmt::format("its {} is {}, this run's is {}; set {} = \"{}\"", name, words(stored),
                                    words(wanted), option, words(stored)));
  }

  /// Rejects weights that this model does not have, e.g. of a deeper model.
  void refuse_unknown_weights() const {
    std::set<std::string> known;
    for (const SavedParameter& parameter : parameters_) known.insert(prefix_ + parameter.name);
    for (const auto& [name, stored] : index_.tensors) {
      // torchtitan of 2024 saved this table, which every run computes.
      if (holds_other_state(name) || known.contains(name) || name.ends_with("freqs_cis")) continue;
      throw MismatchError(fmt::format("it holds {}, which this run's model has not", name));
    }
  }

  void add_model() {
    for (const SavedParameter& parameter : parameters_) {
      add(prefix_ + parameter.name, type_of(parameter.master, parameter.master_type), parameter, parameter.master,
          "training.dtype");
    }
  }

  /// Whether any optimizer's state of the parameter is stored.
  bool has_state(const SavedParameter& parameter) const {
    const std::string prefix = state_key(parameter.name, "");
    const auto first = index_.tensors.lower_bound(prefix);
    return first != index_.tensors.end() && first->first.starts_with(prefix);
  }

  void add_moments() {
    for (const SavedParameter& parameter : parameters_) {
      if (!parameter.trained) continue;
      const bool has_moments = std::any_of(parameter.moments.begin(), parameter.moments.end(), [&](const auto& moment) {
        return index_.tensors.contains(state_key(parameter.name, moment.first));
      });
      const bool has_others = !has_moments && has_state(parameter);
      if (!has_moments && (has_others || checkpoint_.verified())) {  // or it was frozen in the run that saved it
        (has_others ? of_other_optimizer_ : without_moments_).push_back(parameter.name);
        continue;
      }
      for (const auto& [moment, value] : parameter.moments) {
        add(state_key(parameter.name, moment), type_of(value, parameter.moment_type), parameter, value,
            "optimizer.state_dtype");
      }
      add_steps(parameter);
    }
  }

  /// Adds the step count of each parameter that this rank holds; it is checked before it is taken over.
  void add_steps(const SavedParameter& parameter) {
    const std::optional<Box> box = parameter.box_of(rank_);
    if (!box || !parameter.steps.defined()) return;
    StepCount count{&parameter, state_key(parameter.name, "step"), {}};
    if (index_.tensors.contains(count.name)) {
      count.stored = at::zeros({}, at::kFloat);
      targets_.push_back({{count.name, at::kFloat, {}}, {}, count.stored, /*any_type=*/true});
    }
    steps_.push_back(std::move(count));
  }

  /// The counts belong to the moments. `step`: of the run, for a checkpoint that does not have them.
  void take_steps(int64_t step) {
    size_t without = 0;
    for (const StepCount& count : steps_) {
      if (!count.stored.defined()) ++without;
      const int64_t steps = count.stored.defined() ? stored_count(count.name, count.stored.item<double>()) : step;
      count.parameter->steps.copy_(at::scalar_tensor(steps, at::kFloat));
    }
    if (!without_moments_.empty()) {
      notes_.push_back(
          fmt::format("it holds no moments of {}, which were frozen when it was saved: they begin from zero",
                      join(without_moments_, ", ")));
    }
    if (!of_other_optimizer_.empty()) {
      notes_.push_back(fmt::format(
          "{} had another optimizer when it was saved: moments begin from zero",
          of_other_optimizer_.size() == 1
              ? of_other_optimizer_.front()
              : fmt::format("{} parameters, such as {},", of_other_optimizer_.size(), of_other_optimizer_.front())));
    }
    if (without > 0) {
      notes_.emplace_back("it does not say how many steps the optimizer has made: as many as the run");
    }
  }

  /// Reads the tensors that no rank needs, and the step counts, which few need, distributed over the ranks by file, so
  /// that damage in their blocks is found. All ranks must agree on which tensors these are.
  void check_rest() {
    if (!leave_.empty() || !checkpoint_.verified()) return;
    std::set<std::string> needed;
    for (const SavedParameter& parameter : parameters_) {
      needed.insert(prefix_ + parameter.name);
      for (const auto& [moment, value] : parameter.moments) needed.insert(state_key(parameter.name, moment));
    }
    std::map<std::string, std::vector<LogicalTensor>> rest;  // by file, so that one rank reads its blocks
    for (const auto& [name, stored] : index_.tensors) {
      if (needed.contains(name)) continue;
      // A tensor without chunks is refused when it is read, unless it has no elements.
      rest[stored.chunks.empty() ? "" : stored.chunks[0].place.file].push_back(stored.tensor);
    }
    std::vector<LoadTarget> mine;
    int64_t file = 0;
    for (const auto& [name, tensors] : rest) {
      if (file++ % ranks_ != rank_) continue;
      for (const LogicalTensor& tensor : tensors) {
        mine.push_back({tensor, *whole_everywhere(tensor.shape)(0), at::empty(tensor.shape, tensor.type)});
      }
    }
    checkpoint_.load(mine);
    if (rank_ > 0) return;
    for (const auto& [name, place] : index_.values) checkpoint_.value(name);
  }

  /// titan's position is the same for every rank; torchtitan's differs by data-parallel rank.
  void read_data_position() {
    const auto give_up = [&](const std::string& why) {
      notes_.emplace_back(
          fmt::format("the data position could not be restored ({}): the data start from the beginning", why));
    };
    try {
      const PickleRef ours = read_titan_position(checkpoint_);
      if (!ours) return read_samples(give_up);
      if (!ours->is(PickleValue::Kind::text)) return give_up("it is not text");
      progress_->data_position = parse_json(ours->text);
    } catch (const PickleError& error) {
      give_up(error.what());
    } catch (const nlohmann::json::exception&) {
      give_up("it is not JSON");
    }
  }

  template <class GiveUp>
  void read_samples(const GiveUp& give_up) {
    const std::string mine = fmt::format("dataloader.dp_rank_{}", data_rank_);
    const int64_t ranks = loader_states(index_);
    if (ranks == 0) return give_up("the checkpoint has none");
    if (!index_.values.contains(mine)) {
      return give_up(
          fmt::format("it is that of {} data-parallel ranks, and there is none of rank {}", ranks, data_rank_));
    }
    const PickleRef bytes = checkpoint_.value(mine);
    if (!bytes->is(PickleValue::Kind::bytes)) return give_up("it is not a pickle");
    progress_->samples = read_sample_position(*read_pickle(bytes->text));
    progress_->samples->ranks = ranks;
  }

  /// A value that is JSON; null if there is none.
  nlohmann::json read_json(const char* key, const char* what) {
    if (!index_.values.contains(key)) return nullptr;
    try {
      const PickleRef words = checkpoint_.value(key);
      if (words->is(PickleValue::Kind::text)) return parse_json(words->text);
      notes_.emplace_back(fmt::format("{} could not be restored: not text", what));
    } catch (const nlohmann::json::exception& error) {
      notes_.emplace_back(fmt::format("{} could not be restored: {}", what, error.what()));
    }
    return nullptr;
  }

  struct StepCount {
    const SavedParameter* parameter = nullptr;
    std::string name;
    at::Tensor stored;  // undefined: the checkpoint has none
  };

  OpenCheckpoint& checkpoint_;
  const CheckpointIndex& index_;
  std::span<const SavedParameter> parameters_;
  int64_t rank_;
  std::vector<std::string>& notes_;
  const std::set<std::string>& leave_;
  int64_t data_rank_, ranks_;
  std::vector<LoadTarget> targets_;
  std::vector<StepCount> steps_;  // of the parameters that this rank trains
  std::vector<std::string> without_moments_, of_other_optimizer_;
  std::string prefix_;
  std::optional<SavedProgress> progress_;
};

}  // namespace

std::optional<SavedProgress> restore_run(OpenCheckpoint& checkpoint, std::span<const SavedParameter> parameters,
                                         int64_t rank, std::vector<std::string>& notes,
                                         const std::set<std::string>& leave, int64_t data_rank, int64_t ranks) {
  return Restoration(checkpoint, parameters, rank, notes, leave, data_rank, ranks).run();
}

}  // namespace titan
