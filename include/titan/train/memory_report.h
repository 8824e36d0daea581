// Memory by purpose, planned and measured; and the report when it runs out: its users, and settings that would fit.
// Pure functions of plans and numbers; the trainer calls them.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/model/description.h"
#include "titan/ops/parameter.h"
#include "titan/parallel/plan.h"

namespace titan {

/// The phase of a run that a memory report is about.
enum class RunPhase { training, validation };

/// Memory by purpose at the moment of the process's peak.
struct MeasuredMemory {
  int64_t before_bytes = 0;         // of the process before the job; 0 if only the job's own memory is counted
  int64_t weight_slot_bytes = 0;    // buffers of gathered weights
  int64_t gradient_slot_bytes = 0;  // buffers of unreduced gradients
  std::optional<int64_t> gradient_bytes = {};  // none: freed within their unit's backward
  int64_t optimizer_bytes = 0;
  int64_t host_activation_bytes = 0;  // activations offloaded to the host
  int64_t peak_bytes = 0;
  bool device_only = false;  // the peak excludes host memory
};

/// One purpose: planned and measured bytes. Only unaccounted memory has no planned bytes.
struct MemoryRow {
  std::string purpose;
  int64_t planned = 0;
  int64_t actual = 0;
};

/// One row for each purpose with memory, planned or measured. `planned`: the plan's table of a step or of a validation.
/// Memory that is allocated and freed within it cannot be measured by purpose: the last row holds its sum. On a CPU,
/// pages that were never written are not part of the peak: where the known purposes exceed the peak, the last row has
/// zero bytes.
std::vector<MemoryRow> memory_rows(std::span<const MemoryPurpose> planned, std::span<Parameter* const> parameters,
                                   const MeasuredMemory& measured);
/// The same as lines with a header, and the sums as "together".
std::vector<std::string> comparison_table(std::span<const MemoryRow> rows);

/// If `error` is an out-of-memory error of host or device: the size in the allocator's words, empty if it has none.
std::optional<std::string> out_of_memory_words(const std::exception_ptr& error);

/// oneDNN's message for a failed matmul, which may be caused by a lack of memory; none: another failure.
std::optional<std::string> vague_words(const std::exception_ptr& error);

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
  bool device_only = false;              // host memory is separate and ignored
  std::optional<int64_t> allowed = {};   // bytes available to the job's tensors; none: unknown, less than now
  std::optional<RunPhase> ran_out = {};  // the phase that ran out; none: the job had not begun
  int64_t held = 0;  // maximum part of `allowed` held before the validation that ran out; 0: unknown
};

/// At most `most` settings whose plan fits into `allowed`, ordered by loss of speed and by effect on the result;
/// combined if no single one is enough. If only validation takes too much, changes validation, unless that does not
/// help. Empty if no known setting helps.
std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most = 3);

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

/// Ladders for training, cheapest first: a slower loss, recomputation of cheap operations, smaller batches, full
/// recomputation, narrower dtypes, offload to the host (if it is `other_memory`), more machines, other data; then
/// combinations.
std::vector<MemoryLadder> training_ladders(const JobConfig& config, bool other_memory);
/// Ladders for validation: smaller batches, then shorter sequences.
std::vector<MemoryLadder> validation_ladders(const JobConfig& config);
/// Both combined: batches of one sequence, shorter and shorter; the last is the minimum.
MemoryLadder smallest_validations(const JobConfig& config);

}  // namespace titan
