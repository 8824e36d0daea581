#include "titan/report/step_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;

ProfilerConfig configuration() {
  return ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true);
}

/// Makes Kineto detach CUPTI after a profile, unless the user has decided: attached, it slows the steps that follow.
/// Before CUDA 12.6 a second profile crashed after that if CUDA graphs were in use (pytorch/pytorch, pull requests
/// 112507 and 150957).
void detach_after_profiles() {
  constexpr int kFixed = 12060;
  const Cuda* gpus = opened_cuda();
  if (gpus && gpus->state().runtime >= kFixed) ::setenv("TEARDOWN_CUPTI", "1", /*overwrite=*/0);
}

std::set<ActivityType> activities(bool cuda) {
  return cuda ? std::set<ActivityType>{ActivityType::CPU, ActivityType::CUDA}
              : std::set<ActivityType>{ActivityType::CPU};
}

}  // namespace

ProfileCycle::Phase ProfileCycle::phase_of(int64_t step) const {
  const int64_t place = (step - 1) % period;
  if (place >= period - active) return Phase::active;
  return place >= period - active - warm_up ? Phase::warm_up : Phase::wait;
}

StepProfiler::StepProfiler(const ProfileCycle& cycle, std::filesystem::path folder, int64_t rank, bool cuda,
                           const Log& log)
    : cycle_(cycle), folder_(std::move(folder)), rank_(rank), cuda_(cuda), log_(log) {
  TITAN_CHECK(cycle.active >= 1 && cycle.warm_up >= 0 && cycle.period >= cycle.active + cycle.warm_up, cycle.period,
              cycle.active, cycle.warm_up);
  // Otherwise Kineto looks for GPUs and prints on standard error that there are none.
  if (!cuda) ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  if (cuda) detach_after_profiles();
  log_.info("Profiling active. Traces will be saved at {}", folder_.string());
}

StepProfiler::~StepProfiler() {
  step_.reset();
  if (active_) torch::autograd::profiler::disableProfiler();
}

void StepProfiler::begin_step(int64_t step) {
  const ProfileCycle::Phase phase = cycle_.phase_of(step);
  if (phase != ProfileCycle::Phase::wait && !prepared_) {
    torch::autograd::profiler::prepareProfiler(configuration(), activities(cuda_));
    prepared_ = true;
  }
  if (phase != ProfileCycle::Phase::active) return;
  if (!active_) start();
  last_step_ = step;
  // Tools for PyTorch's traces find the steps by this name.
  step_ = std::make_unique<ProfileRange>("ProfilerStep#" + std::to_string(step));
}

void StepProfiler::end_step(int64_t step) {
  step_.reset();
  if (active_ && cycle_.ends_at(step)) write();
}

void StepProfiler::finish() {
  step_.reset();
  if (active_) write();
}

// Work is enqueued ahead of the device, and a trace holds what runs between these two calls.
void StepProfiler::wait_for_device() const {
  if (cuda_) opened_cuda()->wait();
}

void StepProfiler::start() {
  wait_for_device();
  torch::autograd::profiler::enableProfiler(
      configuration(), activities(cuda_),
      {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
  active_ = true;
}

void StepProfiler::write() {
  const auto begin = std::chrono::steady_clock::now();
  log_.info("Dumping profiler traces at step {}", last_step_);
  active_ = prepared_ = false;
  wait_for_device();
  const auto result = torch::autograd::profiler::disableProfiler();
  const std::filesystem::path place = folder_ / fmt::format("iteration_{}", last_step_);
  const std::filesystem::path file = place / fmt::format("rank{}_trace.json", rank_);
  std::error_code missing;
  std::string problem;
  try {
    make_folders(place);
    std::filesystem::remove(file, missing);
    result->save(file.string());
    // Kineto reports a failed write only on standard error, if at all.
    if (!std::filesystem::exists(file, missing)) problem = "cannot write " + file.string();
  } catch (const Error& error) {
    problem = error.what();
  }
  if (problem.empty()) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    log_.info("Finished dumping profiler traces in {:.2f} seconds", seconds);
  } else if (!std::exchange(warned_, true)) {
    log_.warning("profiling.save_traces_folder: {}; training continues without traces", problem);
  }
}

}  // namespace titan
