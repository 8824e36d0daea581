#include "titan/schedule/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/schedule/families.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

constexpr const char* kSplitPoints = "pipeline_parallel_split_points";
constexpr const char* kLayersPerStage = "pipeline_parallel_layers_per_stage";
constexpr const char* kModules = "module_fqns_per_model_part";
constexpr const char* kFirstLess = "pipeline_parallel_first_stage_less_layers";
constexpr const char* kLastLess = "pipeline_parallel_last_stage_less_layers";
constexpr const char* kDegree = "pipeline_parallel_degree";

std::string layer_name(int number) { return fmt::format("layers.{}", number); }

/// "3", "3 or 4": the legal numbers closest to `number` on both sides, from `least` to `most`. Empty: there are none.
std::string nearest_legal(int number, int least, int most, const std::function<bool(int)>& legal) {
  std::vector<std::string> found;
  for (int below = std::min(number, most); below >= least && found.empty(); --below) {
    if (legal(below)) found.push_back(std::to_string(below));
  }
  for (int above = std::max(number, least - 1) + 1; above <= most; ++above) {
    if (!legal(above)) continue;
    found.push_back(std::to_string(above));
    break;
  }
  return join(found, " or ");
}

class Splitter {
 public:
  Splitter(const ModelChain& chain, const StageSplitRequest& request) : chain_(chain), request_(request) {}

  StageSplit split() {
    check_one_way();
    if (!request_.modules.empty()) {
      by_modules();
    } else if (!request_.split_points.empty()) {
      by_points();
    } else if (request_.layers_per_stage) {
      by_size(*request_.layers_per_stage);
    } else {
      by_number(request_.ranks * request_.default_stages_per_rank);
    }
    if (!result_.problems.empty()) result_.stages.clear();
    return std::move(result_);
  }

 private:
  void add(const char* option, std::string what, std::string remedy) {
    result_.problems.push_back({option, std::move(what), std::move(remedy)});
  }

  void check_one_way() {
    std::vector<std::string> given;
    if (!request_.modules.empty()) given.emplace_back(kModules);
    if (!request_.split_points.empty()) given.emplace_back(kSplitPoints);
    if (request_.layers_per_stage) given.emplace_back(kLayersPerStage);
    if (given.size() < 2) return;
    add(given[0].c_str(), fmt::format("{} each define the split of layers", join(given, " and ")), "keep one of them");
  }

  bool is_legal_number(int stages) const {
    return stages > 0 && stages % request_.ranks == 0 && stages / request_.ranks >= request_.least_stages_per_rank &&
           stages / request_.ranks <= request_.most_stages_per_rank;
  }

  /// The numbers of stages closest to `stages` that the schedule and the ranks allow.
  std::string legal_numbers(int stages) const {
    const int most = std::min(request_.most_stages_per_rank * request_.ranks, stages + request_.ranks * 2 + 2);
    return nearest_legal(stages, 1, std::max(most, request_.least_stages_per_rank * request_.ranks),
                         [this](int number) { return is_legal_number(number); });
  }

  /// True if ranks and schedule can run that many stages; otherwise adds a problem that begins with `what`.
  bool check_number(const char* option, int stages, const std::string& what, const std::string& remedy) {
    if (is_legal_number(stages)) return true;
    const std::string why = stages % request_.ranks != 0
                                ? fmt::format("{} ranks cannot share them equally", request_.ranks)
                                : fmt::format("{} per rank is not what the schedule runs", stages / request_.ranks);
    add(option, fmt::format("{} {} stages, and {}", what, stages, why), remedy);
    return false;
  }

  /// Builds stages with these numbers of layers, and the ends of the chain.
  void build(const std::vector<int>& layers) {
    int next = 0;
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      std::vector<std::string>& modules = result_.stages.emplace_back();
      if (stage == 0) modules = chain_.first;
      for (int i = 0; i < layers[stage]; ++i) modules.push_back(layer_name(next++));
      if (stage + 1 == layers.size()) modules.insert(modules.end(), chain_.last.begin(), chain_.last.end());
    }
  }

  void by_number(int stages) {
    if (request_.rule == SplitRule::december_2024) return layers_alone(stages);
    if (const std::optional<std::vector<int>> layers = balanced(stages)) build(*layers);
  }

  void layers_alone(int stages) {
    if (stages > chain_.layers) {
      const int most_ranks = chain_.layers / (stages / request_.ranks);
      const std::string larger = fmt::format("a model of at least {} layers", stages);
      return add(kDegree, fmt::format("{} stages cannot be made of {} layers", stages, chain_.layers),
                 most_ranks < 1 ? "use " + larger : fmt::format("use at most {} ranks, or {}", most_ranks, larger));
    }
    std::vector<int> layers(static_cast<size_t>(stages), chain_.layers / stages);
    const int left = chain_.layers % stages;
    for (int i = 0; i < left; ++i) ++layers[static_cast<size_t>(i + 1)];
    build(layers);
  }

  int effective_layers() const {
    return chain_.layers + request_.first_stage_less_layers + request_.last_stage_less_layers;
  }

  /// The layers of each stage by the balanced rule, or a problem.
  std::optional<std::vector<int>> balanced(int stages) {
    if (stages == 1) return std::vector{chain_.layers};
    const int share = effective_layers() / stages;
    if (share == 0) {
      add(kDegree,
          fmt::format("{} stages cannot be made of {} layers ({} with embedding and head)", stages, chain_.layers,
                      effective_layers()),
          fmt::format("use at most {} stages, or a larger model", effective_layers()));
      return std::nullopt;
    }
    bool fits = true;
    auto check_end = [&](const char* option, int less, int other, std::string_view end) {
      if (less <= share) return;
      fits = false;
      const std::string legal =
          nearest_legal(less, 0, less, [&](int number) { return number <= (chain_.layers + other + number) / stages; });
      add(option, fmt::format("the {} modules count for {} layers, and a stage has room for {}", end, less, share),
          legal.empty() ? "use fewer stages" : fmt::format("use at most {}, or fewer stages", legal));
    };
    check_end(kFirstLess, request_.first_stage_less_layers, request_.last_stage_less_layers, "first");
    check_end(kLastLess, request_.last_stage_less_layers, request_.first_stage_less_layers, "last");
    if (!fits) return std::nullopt;
    std::vector<int> layers(static_cast<size_t>(stages), share);
    for (int i = 0; i < effective_layers() % stages; ++i) ++layers[static_cast<size_t>(i)];
    layers.front() -= request_.first_stage_less_layers;
    layers.back() -= request_.last_stage_less_layers;
    return layers;
  }

  void by_size(int size) {
    const int effective = effective_layers();
    if (size < 1)
      return add(kLayersPerStage, fmt::format("a stage needs at least one layer, not {}", size), "use at least 1");
    auto stages_of = [effective](int layers) { return (effective + layers - 1) / layers; };
    const std::string legal = nearest_legal(size, 1, effective, [&](int n) { return is_legal_number(stages_of(n)); });
    const std::string what = fmt::format("{} layers per stage split {} layers ({} plus {} for embedding and head) into",
                                         size, effective, chain_.layers, effective - chain_.layers);
    const std::string remedy = legal.empty() ? "use fewer ranks" : "the nearest legal values are " + legal;
    if (!check_number(kLayersPerStage, stages_of(size), what, remedy)) return;
    if (const std::optional<std::vector<int>> layers = balanced(stages_of(size))) build(*layers);
  }

  void by_points() {
    const int stages = static_cast<int>(request_.split_points.size()) + 1;
    check_number(
        kSplitPoints, stages, fmt::format("{} split points make", stages - 1),
        fmt::format("the nearest legal numbers of stages are {}, with one split point less", legal_numbers(stages)));
    std::vector<int> starts;
    for (const std::string& point : request_.split_points) {
      const int start = layer_number(point);
      if (start < 0) {
        add(kSplitPoints, fmt::format("\"{}\" is not a layer of this model", point),
            fmt::format("name layers from layers.0 to {}", layer_name(chain_.layers - 1)));
      } else if (!starts.empty() && start <= starts.back()) {
        add(kSplitPoints, fmt::format("\"{}\" does not come after {}", point, layer_name(starts.back())),
            "name every layer once, in rising order");
      } else {
        starts.push_back(start);
      }
    }
    if (!result_.problems.empty()) return;
    std::vector<int> layers;
    int begin = 0;
    for (const int start : starts) {
      layers.push_back(start - begin);
      begin = start;
    }
    layers.push_back(chain_.layers - begin);
    build(layers);
  }

  /// -1 if it is not a layer.
  int layer_number(const std::string& name) const {
    constexpr std::string_view kPrefix = "layers.";
    if (!name.starts_with(kPrefix)) return -1;
    int number = -1;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
    return error == std::errc() && stop == end && number >= 0 && number < chain_.layers ? number : -1;
  }

  void by_modules() {
    const int stages = static_cast<int>(request_.modules.size());
    check_number(kModules, stages, "the lists make",
                 fmt::format("the nearest legal numbers of lists are {}", legal_numbers(stages)));
    std::vector<std::string> wanted = chain_.first;
    for (int i = 0; i < chain_.layers; ++i) wanted.push_back(layer_name(i));
    wanted.insert(wanted.end(), chain_.last.begin(), chain_.last.end());
    std::vector<std::string> listed;
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<std::string>& list = request_.modules[static_cast<size_t>(stage)];
      if (list.empty()) add(kModules, fmt::format("the list of stage {} is empty", stage), "give every stage a module");
      for (const std::string& name : list) {
        check_module(name, stage, wanted, listed);
        listed.push_back(name);
      }
    }
    std::vector<std::string> missing;
    for (const std::string& name : wanted) {
      if (std::find(listed.begin(), listed.end(), name) == listed.end()) missing.push_back(name);
    }
    if (!missing.empty()) {
      add(kModules, fmt::format("{} {} in no stage", join(missing, ", "), missing.size() == 1 ? "is" : "are"),
          "list every module of the model once");
    }
    check_last_unit();
    result_.stages = request_.modules;
  }

  void check_module(const std::string& name, int stage, const std::vector<std::string>& wanted,
                    const std::vector<std::string>& before) {
    const auto place = std::find(wanted.begin(), wanted.end(), name);
    if (place == wanted.end()) {
      const std::vector<std::string> close = nearest(name, wanted, 1);
      return add(kModules, fmt::format("\"{}\" of stage {} is not a module of this model", name, stage),
                 close.empty() ? "list modules of the model" : fmt::format("did you mean {}?", close.front()));
    }
    if (std::find(before.begin(), before.end(), name) != before.end()) {
      return add(kModules, fmt::format("\"{}\" is listed twice, the second time in stage {}", name, stage),
                 "list every module once");
    }
    if (before.empty()) return;
    const auto last = std::find(wanted.begin(), wanted.end(), before.back());
    if (last != wanted.end() && place < last) {
      add(kModules, fmt::format("\"{}\" of stage {} comes before {} in the model", name, stage, before.back()),
          "list modules in the model's order");
    }
  }

  /// Checks that the modules after the layers, which are one unit, are in one stage.
  void check_last_unit() {
    for (size_t stage = 0; stage < request_.modules.size(); ++stage) {
      const std::vector<std::string>& list = request_.modules[stage];
      const auto here = std::count_if(list.begin(), list.end(), [this](const std::string& name) {
        return std::find(chain_.last.begin(), chain_.last.end(), name) != chain_.last.end();
      });
      if (here == 0 || here == std::ssize(chain_.last)) continue;
      return add(kModules, fmt::format("{} are in different stages", join(chain_.last, " and ")),
                 "put them into the last stage together");
    }
  }

  const ModelChain& chain_;
  const StageSplitRequest& request_;
  StageSplit result_;
};

constexpr const char* kSchedule = "pipeline_parallel_schedule";
constexpr const char* kScheduleFile = "pipeline_parallel_schedule_csv";
constexpr const char* kMicrobatchSize = "pipeline_parallel_microbatch_size";

/// The sizes closest to `size` that divide the batch into a number of microbatches that `legal` accepts.
std::string nearest_sizes(int batch, int size, const std::function<bool(int)>& legal) {
  std::vector<std::string> found;
  auto fits = [&](int other) { return batch % other == 0 && legal(batch / other); };
  for (int below = size - 1; below >= 1 && found.empty(); --below) {
    if (fits(below)) found.push_back(std::to_string(below));
  }
  for (int above = size + 1; above <= batch; ++above) {
    if (!fits(above)) continue;
    found.push_back(std::to_string(above));
    break;
  }
  return join(found, " or ");
}

/// The batches closest to `batch` that `size` divides into a number of microbatches that `legal` accepts.
std::string nearest_batches(int batch, int size, const std::function<bool(int)>& legal) {
  constexpr int kFarthest = 1 << 12;  // microbatches: ends the search, although an accepted number is always nearer
  std::vector<std::string> found;
  for (int count = (batch - 1) / size; count >= 1; --count) {
    if (!legal(count)) continue;
    found.push_back(std::to_string(count * size));
    break;
  }
  for (int count = batch / size + 1; count <= batch / size + kFarthest; ++count) {
    if (!legal(count)) continue;
    found.push_back(std::to_string(count * size));
    break;
  }
  return join(found, " or ");
}

class Planner {
 public:
  explicit Planner(const PipelineRequest& request) : request_(request), split_(request.split) {}

  PipelinePlan plan() {
    split_.ranks = request_.ranks;
    if (request_.custom) {
      use_custom(*request_.custom);
    } else {
      use_named();
    }
    return std::move(plan_);
  }

 private:
  void add(const char* option, std::string what, std::string remedy) {
    plan_.problems.push_back({option, std::move(what), std::move(remedy)});
  }

  /// Sets the number of microbatches; adds a problem if the batch does not divide or `legal` rejects the number.
  void cut_batch(const std::function<bool(int)>& legal, const std::string& rule) {
    const int batch = request_.local_batch_size;
    const int size = request_.microbatch_size;
    plan_.microbatches = batch / size;
    const bool divides = batch % size == 0;
    if (divides && legal(plan_.microbatches)) return;
    const std::string sizes = nearest_sizes(batch, size, legal);
    std::string what = divides ? fmt::format("{} microbatches (a batch of {} in pieces of {}) do not fit: {}",
                                             plan_.microbatches, batch, size, rule)
                               : fmt::format("a batch of {} does not divide into pieces of {}", batch, size);
    const std::string batches = nearest_batches(batch, size, legal);
    add(kMicrobatchSize, std::move(what),
        sizes.empty() ? fmt::format("no size fits a batch of {}: training.local_batch_size = {} would", batch, batches)
                      : fmt::format("legal sizes nearby: {}; or set training.local_batch_size to {}", sizes, batches));
  }

  void split_layers() {
    StageSplit split = split_stages(request_.chain, split_);
    plan_.stages = std::move(split.stages);
    plan_.problems.insert(plan_.problems.end(), split.problems.begin(), split.problems.end());
  }

  void use_named() {
    const ScheduleFamily* family = find_schedule(request_.schedule);
    if (family == nullptr) {
      std::vector<std::string> names;
      for (const ScheduleFamily& one : schedule_families()) names.emplace_back(one.name);
      return add(kSchedule, fmt::format("\"{}\" is not a schedule", request_.schedule),
                 "use one of " + join(names, ", "));
    }
    split_.least_stages_per_rank = family->least_stages_per_rank;
    split_.most_stages_per_rank = family->most_stages_per_rank;
    split_.default_stages_per_rank = family->least_stages_per_rank;
    split_layers();
    PipelineShape shape{request_.ranks, family->least_stages_per_rank, 1};
    if (!plan_.stages.empty()) shape.stages_per_rank = static_cast<int>(plan_.stages.size()) / request_.ranks;
    auto legal = [&](int microbatches) {
      shape.microbatches = microbatches;
      return family->microbatches_fit(shape);
    };
    cut_batch(legal, fmt::format("{} with {} ranks {}", family->name, request_.ranks, family->microbatch_rule));
    if (!plan_.problems.empty()) return;
    shape.microbatches = plan_.microbatches;
    plan_.compute = generate(*family, shape);
    finish();
  }

  void use_custom(const ScheduleTable& table) {
    const TableFacts facts = facts_of(table);
    for (const std::string& problem : table_problems(table, {request_.ranks, -1, -1})) {
      add(kScheduleFile, problem, "correct the file (titan_train schedule --from FILE shows it)");
    }
    if (facts.has_transfers || facts.has_weights || facts.has_reductions) {
      add(kScheduleFile, "the file holds more than compute actions", "leave F, B, I and W; the rest is added");
    }
    if (!plan_.problems.empty()) return;
    if (facts.stages % request_.ranks != 0) {
      return add(kScheduleFile,
                 fmt::format("its {} stages cannot be shared equally by {} ranks", facts.stages, request_.ranks),
                 "give every rank as many stages");
    }
    split_.least_stages_per_rank = split_.most_stages_per_rank = facts.stages / request_.ranks;
    split_.default_stages_per_rank = split_.least_stages_per_rank;
    split_layers();
    cut_batch([&](int microbatches) { return microbatches == facts.microbatches; },
              fmt::format("the schedule's file is for {}", facts.microbatches));
    plan_.compute = table;
    finish();
  }

  void finish() {
    plan_.rank_of_stage = facts_of(plan_.compute).rank_of_stage;
    const auto stages = std::ssize(plan_.rank_of_stage);
    if (plan_.microbatches >= stages) return;
    plan_.warnings.push_back(
        fmt::format("{} microbatches are fewer than the {} stages of the pipeline: ranks will be idle much of the time",
                    plan_.microbatches, stages));
  }

  const PipelineRequest& request_;
  StageSplitRequest split_;
  PipelinePlan plan_;
};

}  // namespace

StageSplit split_stages(const ModelChain& chain, const StageSplitRequest& request) {
  return Splitter(chain, request).split();
}

PipelinePlan plan_pipeline(const PipelineRequest& request) {
  TITAN_CHECK(request.ranks >= 1 && request.microbatch_size >= 1 && request.local_batch_size >= 1, request.ranks,
              request.microbatch_size, request.local_batch_size);
  return Planner(request).plan();
}

}  // namespace titan
