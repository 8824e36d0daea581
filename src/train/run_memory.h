// The memory of a run: checks before the model is built that the plan fits, reports what used memory at a peak, and
// handles running out of it. The tables and the search for settings that fit are pure functions
// (titan/train/memory_report.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "titan/train/device.h"
#include "titan/train/memory_report.h"

namespace titan {

struct Run;

class RunMemory {
 public:
  /// Measures the available memory; construct it before the job's first tensor. `run` must outlive it.
  explicit RunMemory(const Run& run);

  /// choose_loss_chunks for the rank with the least memory; reports plan with that number from then on. Collective.
  int64_t settle_loss_chunks();
  /// Warns if the plan needs more than is available.
  void check(const Plan& plan) const;
  /// Runs `work`. If it runs out of memory, logs the memory table and throws Error(out_of_memory) with the settings
  /// that would fit. `position` describes the work, e.g. "building the model".
  void watch(const std::function<std::string()>& position, const std::function<void()>& work) const;
  /// Between this call and end_validation(), tables and settings describe validation.
  void begin_validation();
  void end_validation() { phase_ = Phase::training; }
  /// The current computation, "validation, forward of layers.0, after step 20"; `step`: the last complete step.
  std::string position(int64_t step) const;
  /// Planned and measured bytes by purpose at a peak of `peak_bytes`.
  std::vector<MemoryRow> rows(int64_t peak_bytes) const;
  /// After the first step on a GPU: reports the memory of libraries and the amount that check() reserves for them.
  void compare_libraries() const;

 private:
  /// `ran_out`: the phase that ran out of memory; none: it has not.
  MemoryQuestion question(std::optional<Phase> ran_out = {}) const;
  /// Whether 1.5 times the plan (a margin for libraries) exceeds the available memory.
  bool is_short() const;

  const Run& run_;
  JobConfig config_;  // the run's, with the number of parts that were chosen
  MemoryRoom room_;
  int64_t bytes_before_ = 0;  // of the process, libraries included, before the job's first tensor; 0 on a GPU
  Phase phase_ = Phase::training;
  int64_t held_before_validation_ = 0;  // maximum held by a GPU's allocator
};

}  // namespace titan
