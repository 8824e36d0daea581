// Memory by purpose, planned against measured; and what to say when it runs out: who held it, and which settings would
// fit. Pure functions from plans and numbers; the trainer knows the moment.
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

/// What a run does when its memory is asked for.
enum class RunPhase { training, validation };

/// Memory by purpose at the moment of the process's peak.
struct MeasuredMemory {
  int64_t before_bytes = 0;       // of the process before the job made anything; 0 where only the job's own is counted
  int64_t weight_slot_bytes = 0;  // where weights are gathered
  int64_t gradient_slot_bytes = 0;             // where gradients are made before they are reduced
  std::optional<int64_t> gradient_bytes = {};  // none: they live only as long as their unit's backward
  int64_t optimizer_bytes = 0;
  int64_t host_activation_bytes = 0;  // activations that wait on the host
  int64_t peak_bytes = 0;
  bool device_only = false;  // what is on the host is other memory, and no part of the peak
};

/// One purpose: bytes that the plan said and that were found. Only memory that is not accounted for has no planned
/// bytes.
struct MemoryRow {
  std::string purpose;
  int64_t planned = 0;
  int64_t actual = 0;
};

/// One row for each purpose with memory, planned or measured. `planned`: the plan's table of a step or of a validation.
/// Memory that is allocated and freed within it cannot be measured by purpose: the last row holds its sum.
/// On a CPU, pages that were never written are not part of the peak: where the known purposes exceed the peak, the last
/// row has zero bytes.
std::vector<MemoryRow> memory_rows(std::span<const MemoryPurpose> planned, std::span<Parameter* const> parameters,
                                   const MeasuredMemory& measured);
/// The same as lines with a head, and the sums as "together".
std::vector<std::string> comparison_table(std::span<const MemoryRow> rows);

/// If `error` says that memory ran out, on the host or on a device: the size in the allocator's words, empty where it
/// names none.
std::optional<std::string> out_of_memory_words(const std::exception_ptr& error);

/// oneDNN's message for a failed product, whose cause may be a lack of memory; none: another failure.
std::optional<std::string> vague_words(const std::exception_ptr& error);

/// A setting to try, what the plan takes with it, and the job that it makes.
struct MemorySetting {
  std::string words;  // `training.local_batch_size = 2`
  int64_t bytes = 0;
  JobConfig config = {};
  int64_t times_ranks = 1;  // as many processes
};

/// The job whose memory is to be smaller, and where it would run.
struct MemoryQuestion {
  const JobConfig& config;
  MeshPlace place;
  int64_t vocabulary = 1;
  bool device_only = false;              // the host's memory is another, and no matter
  std::optional<int64_t> allowed = {};   // bytes that the job's own tensors may take; none: not known, less than now
  std::optional<RunPhase> ran_out = {};  // in what it did; none: the job was not begun
  int64_t held = 0;  // of what is allowed, at most, before the validation in which it ran out; 0: not known
};

/// At most `most` settings with which the plan takes no more than is allowed, those first that cost the least speed or
/// change the result the least; together where one alone does not do. Of validation where that alone takes too much,
/// unless none of it helps. Empty when nothing that is known here does.
std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most = 3);

/// What the job's plan takes: in what it ran out in, or at most.
int64_t predicted_bytes(const MemoryQuestion& question);

// Changes of a job that take memory off it, in the order of what they cost. Knows options, no bytes.

/// A job with some settings changed.
struct MemoryTrial {
  JobConfig config;
  std::vector<std::string> words;
  int64_t times_ranks = 1;  // so many times the processes

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
/// One of several sizes of a setting: the first that fits counts.
using MemoryLadder = std::vector<MemoryChange>;

/// Of training. What costs least comes first: nothing but the loss's speed, then recomputing what is cheap, smaller
/// batches, recomputing all, narrower numbers, waiting for the host (where that is `other_memory`), more machines,
/// other data; and several of them.
std::vector<MemoryLadder> training_ladders(const JobConfig& config, bool other_memory);
/// Of validation: smaller batches, then shorter sequences.
std::vector<MemoryLadder> validation_ladders(const JobConfig& config);
/// Both of them: batches of one sequence, shorter and shorter; the last is the least there is.
MemoryLadder smallest_validations(const JobConfig& config);

}  // namespace titan
