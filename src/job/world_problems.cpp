#include "titan/job/checks.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/config/section.h"
#include "titan/job/job.h"

namespace titan {
namespace {

/// The first degree that the user set: the option that a message points to.
std::string given_degree(const Origins& origins) {
  for (const MeshAxis axis : kMeshAxes) {
    if (std::string key = degree_option(axis).key; origins.is_set(key)) return key;
  }
  return degree_option(MeshAxis::dp_shard).key;
}

/// The multiples of `step` next to `number`, at least `step`.
std::string nearest_multiples(int64_t number, int64_t step) {
  const int64_t below = number / step * step;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : std::to_string(step);
}

/// One more than a world can have: products of degrees stop here, since those of a typo overflow 64 bits.
constexpr int64_t kTooManyRanks = kMostRanks + 1;

int64_t ranks_of(const std::vector<int64_t>& degrees) {
  int64_t product = 1;
  for (const int64_t degree : degrees) product = std::min(product * std::min(degree, kTooManyRanks), kTooManyRanks);
  return product;
}

/// Number of ranks per shard of the weights.
int64_t unsharded_ranks(const ParallelismSection& degrees) {
  std::vector<int64_t> others;
  for (const MeshAxis axis : kMeshAxes) {
    if (axis != MeshAxis::dp_shard) others.push_back(degrees.*degree_option(axis).degree);
  }
  return ranks_of(others);
}

std::string fitting_worlds(const ParallelismSection& degrees, int64_t world) {
  const int64_t others = unsharded_ranks(degrees);
  const int64_t shards = degrees.data_parallel_shard_degree;
  if (ranks_of({others, std::max<int64_t>(1, shards)}) == kTooManyRanks) {
    return fmt::format("the degrees need more than the {} ranks that a run can have", kMostRanks);
  }
  if (shards == -1) return fmt::format("the degrees need {} ranks", nearest_multiples(world, others));
  const std::string all = fmt::format("the degrees need {} ranks", others * shards);
  if (world % others != 0) return all;
  return all + fmt::format("; or set parallelism.data_parallel_shard_degree to {}, or to -1", world / others);
}

std::vector<Problem> batch_problems(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  const int64_t local = config.training.local_batch_size, global = config.training.global_batch_size;
  const int64_t ranks = mesh.data_parallel_degree();
  if (global <= 0 || global % (local * ranks) == 0) return {};
  return {origins.problem(
      "training.global_batch_size",
      fmt::format("training.global_batch_size = {} is not a multiple of training.local_batch_size = {}{}", global,
                  local, ranks > 1 ? fmt::format(" on {} data-parallel ranks", ranks) : ""),
      fmt::format("use {} (a multiple of {}), or -1", nearest_multiples(global, local * ranks), local * ranks))};
}

std::vector<Problem> seed_problems(const JobConfig& config, const Origins& origins, int64_t world) {
  const std::string key = "checkpoint.create_seed_checkpoint";
  if (!config.checkpoint.enable || !config.checkpoint.create_seed_checkpoint || world == 1) return {};
  return {origins.problem(key, fmt::format("{} = true with {} processes", key, world),
                          "start a single one; runs of any layout can begin from what it saves")};
}

std::vector<Problem> replay_problems(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  const std::string key = "debug.replay_on_neighbours";
  if (config.debug.replay_steps == 0 || !config.debug.replay_on_neighbours || mesh.data_parallel_degree() > 1)
    return {};
  if (mesh.world() == 1) return {};  // it has no effect, which is reported as a note
  return {origins.problem(key, fmt::format("{} = true, but no two ranks read different samples in this layout", key),
                          "set it to false: debug.replay_steps alone compares each rank with itself; or give "
                          "parallelism.data_parallel_shard_degree or data_parallel_replicate_degree two ranks")};
}

/// Options that have no effect on this mesh, which the configured degrees alone do not show.
std::vector<Problem> notes_for_mesh(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  const std::string key = "parallelism.fsdp_reshard_after_forward";
  const bool is_open = config.parallelism.data_parallel_shard_degree == -1;
  const bool gathers =
      mesh.size(MeshAxis::dp_shard) * mesh.size(MeshAxis::cp) > 1 || config.training.enable_cpu_offload;
  if (!is_open || gathers || !origins.is_set(key) ||
      config.parallelism.fsdp_reshard_after_forward == ReshardPolicy::standard)
    return {};
  const std::string why = mesh.world() == 1 ? "one process holds every parameter whole"
                                            : fmt::format(
                                                  "no rank of {} shards its weights "
                                                  "(parallelism.data_parallel_shard_degree comes to 1)",
                                                  mesh.world());
  return {origins.note(key, fmt::format("{} = \"{}\" has no effect here: {}", key,
                                        word_of(config.parallelism.fsdp_reshard_after_forward), why))};
}

}  // namespace

int64_t fewest_ranks(const JobConfig& config) {
  const int64_t shards = std::max<int64_t>(1, config.parallelism.data_parallel_shard_degree);
  const int64_t asked = ranks_of({unsharded_ranks(config.parallelism), shards});
  return config.comm.world_size.value_or(std::min(asked, kMostRanks));
}

std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world) {
  // A dry run has comm.world_size ranks, although the launcher started one process.
  if (config.comm.mode == "fake_backend") world = config.comm.world_size.value_or(world);
  std::vector<Problem> problems = seed_problems(config, origins, world);
  try {
    const DeviceMesh mesh = make_mesh(config, world);
    for (Problem& problem : batch_problems(config, origins, mesh)) problems.push_back(std::move(problem));
    for (Problem& problem : replay_problems(config, origins, mesh)) problems.push_back(std::move(problem));
    for (Problem& problem : check_gradient_dtype(config, origins, mesh)) problems.push_back(std::move(problem));
    for (Problem& note : notes_for_mesh(config, origins, mesh)) problems.push_back(std::move(note));
  } catch (const Error& error) {
    problems.push_back(origins.problem(given_degree(origins), error.what(), fitting_worlds(config.parallelism, world)));
  }
  return problems;
}

namespace {

/// Messages offer no degrees above this: a longer list would hide the rest of the message.
constexpr int64_t kMostNamed = 256;

class DegreeCheck {
 public:
  DegreeCheck(const ModelDescription* model, const JobConfig& config, const Origins& origins)
      : model_(model), config_(config), origins_(origins) {}

  std::vector<Problem> run() {
    check_heads();
    check_length("training.seq_len", config_.training.seq_len);
    // A validation length that defaults to training's needs no check of its own.
    const ValidationSection& validation = config_.validation;
    const bool follows = !origins_.is_set("validation.seq_len") && validation.seq_len == config_.training.seq_len;
    if (validation.enable && !follows) check_length("validation.seq_len", validation.seq_len);
    return std::move(problems_);
  }

 private:
  /// Why `degree` ranks cannot shard every matrix of a block; empty if they can.
  std::string obstacle(int64_t degree) const;
  /// The number of equal parts of a sequence.
  int64_t parts(int64_t tensor, int64_t context) const { return tensor * SequenceSplit{context, balance_}.chunks(); }
  bool divide_lengths(int64_t tensor, int64_t context) const;
  std::string tensor_degrees(int64_t context) const;
  std::string context_degrees(int64_t tensor) const;
  /// Degrees that fit the sequence lengths.
  std::string other_degrees() const;
  void check_heads();
  void check_length(const char* key, int64_t length);

  const ModelDescription* model_;
  const JobConfig& config_;
  const Origins& origins_;
  int64_t tensor_ = config_.parallelism.tensor_parallel_degree;
  int64_t context_ = config_.parallelism.context_parallel_degree;
  LoadBalance balance_ = make_sequence_share(config_, {}).split.balance;
  std::vector<Problem> problems_;
};

std::string DegreeCheck::obstacle(int64_t degree) const {
  if (!model_) return {};
  if (model_->heads % degree != 0) return fmt::format("{} heads", model_->heads);
  if (model_->kv_heads % degree != 0) return fmt::format("{} heads of keys and values", model_->kv_heads);
  for (const UnitDescription& unit : model_->units) {
    if (unit.role != UnitRole::block) continue;
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::optional<int64_t> split = parameter.split_over(MeshAxis::tp);
      if (!split) continue;
      const int64_t size = parameter.shape[static_cast<size_t>(*split)];
      if (size % degree != 0) return fmt::format("{} rows or columns of {}", size, parameter.name);
    }
  }
  return {};
}

bool DegreeCheck::divide_lengths(int64_t tensor, int64_t context) const {
  const int64_t divisor = parts(tensor, context);
  const bool validates = config_.validation.enable;
  return config_.training.seq_len % divisor == 0 && (!validates || config_.validation.seq_len % divisor == 0);
}

std::string DegreeCheck::tensor_degrees(int64_t context) const {
  std::vector<std::string> degrees;
  for (int64_t degree = 1; degree <= (model_ ? model_->heads : kMostNamed); ++degree) {
    if (obstacle(degree).empty() && divide_lengths(degree, context)) degrees.push_back(std::to_string(degree));
  }
  return join(degrees, ", ");
}

std::string DegreeCheck::context_degrees(int64_t tensor) const {
  std::vector<std::string> degrees;
  for (int64_t degree = 1; degree <= kMostNamed; ++degree) {
    if (divide_lengths(tensor, degree)) degrees.push_back(std::to_string(degree));
  }
  return join(degrees, ", ");
}

std::string DegreeCheck::other_degrees() const {
  std::vector<std::string> ways;
  const auto add = [&](const char* words, const std::string& degrees) {
    if (!degrees.empty()) ways.push_back(words + degrees);
  };
  if (tensor_ > 1) add("tensor_parallel_degree = ", tensor_degrees(context_));
  if (context_ > 1) add("context_parallel_degree = ", context_degrees(tensor_));
  if (ways.empty()) add("tensor_parallel_degree = 1 and context_parallel_degree = ", context_degrees(1));
  return join(ways, ", or ");
}

void DegreeCheck::check_heads() {
  const std::string found = obstacle(tensor_);
  if (found.empty()) return;
  const std::string fitting = tensor_degrees(context_);
  problems_.push_back(origins_.problem("parallelism.tensor_parallel_degree",
                                       fmt::format("parallelism.tensor_parallel_degree = {} does not divide {} of {} "
                                                   "{}",
                                                   tensor_, found, config_.model.name, config_.model.flavor),
                                       "degrees that do: " + (fitting.empty() ? tensor_degrees(1) : fitting)));
}

void DegreeCheck::check_length(const char* key, int64_t length) {
  const int64_t divisor = parts(tensor_, context_);
  if (length % divisor == 0) return;
  const bool is_head_tail = balance_ == LoadBalance::head_tail;
  const char* ranks = context_ == 1  ? ""
                      : is_head_tail ? " × 2 × context_parallel_degree, as head-tail balancing cuts it"
                                     : " × context_parallel_degree";
  const int64_t below = std::max(divisor, length / divisor * divisor), above = (length / divisor + 1) * divisor;
  problems_.push_back(origins_.problem(
      key, fmt::format("{} = {} is not a multiple of {} (tensor_parallel_degree{})", key, length, divisor, ranks),
      fmt::format("use {}; or keep the length, with {}",
                  below == above ? std::to_string(below) : fmt::format("{} or {}", below, above), other_degrees())));
}

}  // namespace

std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins) {
  return DegreeCheck(model, config, origins).run();
}

}  // namespace titan
