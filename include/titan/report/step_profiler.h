// Traces single steps with LibTorch's profiler (Kineto) on torchtitan's schedule: traces the last steps of every
// period, after warm-up steps. Owned by the trainer, which reports every step to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "titan/base/log.h"
#include "titan/ops/profile_range.h"

namespace titan {

struct ProfileCycle {
  enum class Phase { wait, warm_up, active };

  int64_t period = 10;  // steps, at least warm_up + active
  int64_t warm_up = 3;
  int64_t active = 1;

  /// Of step 1, 2, …: the last `active` steps of a period are traced, whichever step the process starts with.
  Phase phase_of(int64_t step) const;
  bool ends_at(int64_t step) const { return step % period == 0; }
};

class StepProfiler {
 public:
  /// Traces go to `folder`/iteration_N/rankR_trace.json, N being the last step in it, in the format of Chrome's trace
  /// viewer. `cuda`: include GPU activity.
  StepProfiler(const ProfileCycle& cycle, std::filesystem::path folder, int64_t rank, bool cuda, const Log& log);
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  void begin_step(int64_t step);
  /// Call after the work of `step` was enqueued. Writes a trace if one is due.
  void end_step(int64_t step);
  /// The run ends: writes what an incomplete cycle has traced.
  void finish();

 private:
  void wait_for_device() const;
  void start();
  void write();

  ProfileCycle cycle_;
  std::filesystem::path folder_;
  int64_t rank_;
  bool cuda_;
  const Log& log_;
  bool prepared_ = false;
  bool active_ = false;
  bool warned_ = false;
  int64_t last_step_ = 0;  // in the current trace
  std::unique_ptr<ProfileRange> step_;
};

}  // namespace titan
