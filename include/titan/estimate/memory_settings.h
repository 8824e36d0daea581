// Settings that make a job fit into memory: each is tried by making the job's plan again, in the order of their cost.
// Pure functions of the config and the plan.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/plan/plan.h"

namespace titan {

/// The phase of a run that a memory report is about.
enum class Phase { training, validation };

/// A setting to try, the bytes of its plan, and the resulting job.
struct MemorySetting {
  std::string words;  // `training.local_batch_size = 2`
  int64_t bytes = 0;
  JobConfig config = {};
  int64_t times_ranks = 1;  // factor of the number of processes
};

/// The job whose memory must be reduced, and its mesh place.
struct MemoryQuestion {
  const JobConfig& config;
  MeshPlace place;
  int64_t vocabulary = 1;
  bool device_only = false;             // host memory is separate and ignored
  std::optional<int64_t> allowed = {};  // bytes available to the job's tensors; none: unknown, less than now
  std::optional<Phase> ran_out = {};    // the phase that ran out; none: the job had not begun
  int64_t held = 0;                     // maximum part of `allowed` held before the validation that ran out; 0: unknown
};

/// At most `most` settings whose plan fits into `allowed`, ordered by loss of speed and by effect on the result;
/// combined if no single one is enough. If only validation takes too much, changes validation, unless that does not
/// help. Empty if no known setting helps.
std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most = 3);

/// GPU memory reserved for libraries: context, communicators, workspaces, fragmentation.
inline constexpr int64_t kLibraryBytes = int64_t{2} << 30;

/// In how many parts a step computes its logits: training.loss_chunks. If that is 0, the fewest of 1, 2, 4 and 8 with
/// which the plan of every pipeline stage, and what the head takes once more, fit into `room`, the bytes of a GPU for
/// the job's tensors (none: unknown, or a CPU), and a part has at most 2³¹ − 1 logits in training and validation. 8 if
/// nothing fits.
int64_t choose_loss_chunks(const JobConfig& config, const ModelDescription& model, const DeviceMesh& mesh,
                           const std::optional<int64_t>& room);

/// Bytes of the job's plan: of the phase that ran out, or the maximum.
int64_t predicted_bytes(const MemoryQuestion& question);

// Changes of a job that reduce its memory, in the order of their cost. Uses options only, no bytes.

/// A job with some settings changed.
struct MemoryTrial {
  JobConfig config;
  std::vector<std::string> words;
  int64_t times_ranks = 1;  // factor of the number of processes

  template <class T>
  MemoryTrial& set(const char* key, T& field, const T& value, const std::string& shown) {
    if (field != value) words.push_back(fmt::format("{} = {}", key, shown));
    field = value;
    return *this;
  }
  MemoryTrial& set(const char* key, int64_t& field, int64_t value) {
    return set(key, field, value, std::to_string(value));
  }
};

using MemoryChange = std::function<void(MemoryTrial&)>;
/// Several values of one setting: the first that fits is used.
using MemoryLadder = std::vector<MemoryChange>;

/// Ladders for training, cheapest first: a slower loss, recomputation of cheap operations, gradients in bf16 (where
/// gradients have memory of the device), smaller batches, full recomputation, narrower dtypes, offload to the host (if
/// it is `other_memory`), more machines, other data; then combinations.
std::vector<MemoryLadder> training_ladders(const JobConfig& config, bool other_memory);
/// Ladders for validation: smaller batches, then shorter sequences.
std::vector<MemoryLadder> validation_ladders(const JobConfig& config);
/// Both combined: batches of one sequence, shorter and shorter; the last is the minimum.
MemoryLadder smallest_validations(const JobConfig& config);

}  // namespace titan
