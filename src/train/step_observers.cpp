#include "step_observers.h"

#include <algorithm>

#include "run_reporter.h"
#include "titan/base/text.h"
#include "titan/plan/plan.h"
#include "titan/train/state_check.h"
#include "titan/train/traffic_check.h"
#include "titan/train/validator.h"

namespace titan {

StepObservers::StepObservers(Run& run, int64_t first_step) : run_(run), first_step_(first_step) {
  if (run.world.fake) return;
  const ProfilingSection& wanted = run.config.profiling;
  const std::filesystem::path top = run.config.job.dump_folder;
  if (wanted.enable_profiling) {
    profiler_ = std::make_unique<StepProfiler>(
        ProfileCycle{wanted.profile_freq, wanted.profiler_warmup, wanted.profiler_active},
        top / wanted.save_traces_folder, run.world.rank, run.device.device.is_cuda(), run.log);
  }
  if (wanted.enable_memory_snapshot && run.device.device.is_cuda()) {
    snapshots_ = std::make_unique<MemorySnapshots>(top / wanted.save_memory_snapshot_folder, run.world.rank, run.log);
  } else if (wanted.enable_memory_snapshot) {
    run.log.shared_warning(
        "profiling.enable_memory_snapshot: snapshots are those of CUDA's caching allocator, and this run is on a CPU: "
        "none are written");
  }
}

void StepObservers::begin_step(int64_t step) {
  if (profiler_) profiler_->begin_step(step);
}

void StepObservers::end_step(int64_t step, bool made) {
  const auto start = std::chrono::steady_clock::now();
  if (profiler_) profiler_->end_step(step);
  if (snapshots_ && made && step % run_.config.profiling.profile_freq == 0) snapshots_->write(step);
  run_.reporter->exclude_since(start);
}

void StepObservers::out_of_memory(int64_t last_step) {
  if (snapshots_) snapshots_->write_at_exit(last_step);
}

void StepObservers::finish() {
  if (profiler_) profiler_->finish();
}

DebugDump* StepObservers::begin_work(int64_t step, std::span<const BatchContext> microbatches) {
  dump_ = dump_of(step, microbatches);
  counts_traffic_ = checks_traffic(step);
  if (counts_traffic_) run_.communicators.reset_traffic();
  return dump_.get();
}

void StepObservers::end_work(int64_t step) {
  if (counts_traffic_) check_traffic_of(step);
  if (dump_) {
    run_.log.info("step {} was dumped to {}", step, dump_->write(run_.config.job.dump_folder, step).string());
  }
  dump_.reset();
}

std::unique_ptr<DebugDump> StepObservers::dump_of(int64_t step, std::span<const BatchContext> microbatches) const {
  const std::vector<int64_t>& wanted = run_.config.debug.dump_steps;
  if (run_.world.fake || std::find(wanted.begin(), wanted.end(), step) == wanted.end()) return nullptr;
  const bool pipeline = run_.model.plan().request.pipeline.has_value();
  DumpRanks ranks{run_.communicators.world, run_.communicators.data, run_.share.split, run_.world.rank == 0, pipeline};
  auto dump = std::make_unique<DebugDump>(run_.model.parameters, microbatches, std::move(ranks));
  if (run_.config.debug.dump_logits) {
    std::vector<at::Tensor> logits;
    for (const BatchContext& batch : microbatches) logits.push_back(infer(run_, batch, UnitMode::logits));
    dump->add_logits(logits);
  }
  return dump;
}

bool StepObservers::watches_host(int64_t step) const {
  if (!run_.config.debug.sync_check || step == first_step_ || dump_) return false;
  return !run_.state_check || !run_.state_check->is_under_way();
}

// The start, a dump, a replay and a validation leave gathered weights, which the next step need not gather.
bool StepObservers::checks_traffic(int64_t step) const {
  const int64_t replay_steps = run_.config.debug.replay_steps;
  if (traffic_is_known_ || dump_ || !run_.world.is_distributed()) return false;
  if (replay_steps > 0 && step % replay_steps == 0) return false;
  return step > first_step_ && !(run_.validator && run_.validator->due(step - 1));
}

void StepObservers::check_traffic_of(int64_t step) {
  traffic_is_known_ = true;
  const Plan& plan = run_.model.plan();
  const TrafficCheck check = check_traffic(plan, run_.communicators);
  run_.log.info("This rank sent {} in {} collectives in step {}, {}", human_bytes(check.sent_bytes), check.calls, step,
                check.differences.empty() ? "as planned" : "which is not what was planned:");
  if (!check.differences.empty()) report_differences(check.differences);
  if (!plan.request.pipeline) return;
  const int64_t planned = planned_live(*plan.request.pipeline), live = run_.model.assembly.executor->most_live();
  run_.log.info("This rank kept the activations of at most {} microbatches and stages at once, {}", live,
                live == planned ? "as planned" : fmt::format("planned {}", planned));
}

// Differences usually vary between ranks: the first rank to find one warns, the others log at info level.
void StepObservers::report_differences(const std::vector<std::string>& differences) const {
  const bool warns = !run_.world.store || run_.world.store->add("traffic/differences", 1) == 1;
  for (const std::string& difference : differences) {
    const std::string line = fmt::format("  rank {}: {}", run_.world.rank, difference);
    warns ? run_.log.warning(line) : run_.log.info(line);
  }
}

}  // namespace titan
