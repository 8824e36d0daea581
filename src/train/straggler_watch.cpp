#include "straggler_watch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "run_reporter.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/train/run.h"

namespace titan {
namespace {

/// Ranks exchange their times once in so many steps: a message every step would cost more on a thousand ranks, and the
/// sum over several steps hides single late ones.
constexpr int64_t kWindowSteps = 5;
/// A rank is named after so many slow windows in a row: one alone may be slow because another program ran.
constexpr int64_t kSlowWindows = 4;
/// Fewer ranks with the same work have no median that one slow rank does not move.
constexpr size_t kFewestRanks = 3;
/// The first steps of a process also allocate, initialise libraries and record graphs.
constexpr int64_t kWarmUpSteps = 3;

/// Ranks compute the same if they hold the same stage, and the same part of each sequence where parts differ.
std::vector<int64_t> work_of_ranks(const Run& run) {
  const DeviceMesh& mesh = run.place.mesh;
  std::vector<MeshAxis> axes = axes_that_divide({DividedWork::units});
  if (run.share.split.balance == LoadBalance::none) {
    for (const MeshAxis axis : axes_that_divide({DividedWork::positions})) axes.push_back(axis);
  }
  std::vector<int64_t> work;
  for (int64_t rank = 0; rank < run.world.size; ++rank) work.push_back(mesh.coordinate(rank, axes));
  return work;
}

}  // namespace

std::vector<double> straggler_scores(std::span<const double> seconds, std::span<const int64_t> work) {
  std::map<int64_t, std::vector<double>> by_work;
  for (size_t rank = 0; rank < seconds.size(); ++rank) by_work[work[rank]].push_back(seconds[rank]);
  std::map<int64_t, double> median;
  for (auto& [which, times] : by_work) {
    if (times.size() < kFewestRanks) continue;
    const size_t middle = (times.size() - 1) / 2;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(middle), times.end());
    median[which] = times[middle];
  }
  std::vector<double> scores;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const auto found = median.find(work[rank]);
    scores.push_back(found == median.end() || found->second <= 0 ? 0.0 : seconds[rank] / found->second);
  }
  return scores;
}

std::vector<int64_t> StragglerCount::add(std::span<const double> scores) {
  std::vector<int64_t> named;
  for (size_t rank = 0; rank < slow_.size(); ++rank) {
    slow_[rank] = scores[rank] > ratio_ ? slow_[rank] + 1 : 0;
    if (slow_[rank] == windows_) named.push_back(static_cast<int64_t>(rank));
  }
  return named;
}

StragglerWatch::StragglerWatch(Run& run)
    : run_(run), work_(work_of_ranks(run)), count_(work_.size(), run.config.metrics.straggler_ratio, kSlowWindows) {}

// The waits of async tensor parallelism are inside its products, and on a GPU the collectives of tensor and context
// parallelism are between the events that take the time: a rank there seems as slow as the one it waits for.
bool StragglerWatch::is_on() const {
  const bool waits_inside = run_.place.mesh.size(axes_that_divide({DividedWork::features, DividedWork::positions})) > 1;
  const bool hides_waits = run_.config.parallelism.enable_async_tensor_parallel || !run_.device.device.is_cpu();
  return run_.config.metrics.straggler_ratio > 0 && run_.communicators.world && !run_.world.fake &&
         !(waits_inside && hides_waits);
}

void StragglerWatch::after_step(int64_t step) {
  if (!is_on()) return;
  ++steps_;
  if (steps_ <= kWarmUpSteps) {
    run_.model.assembly.executor->take_compute_seconds();
  } else if ((steps_ - kWarmUpSteps) % kWindowSteps == 0) {
    exchange(step);
  }
}

void StragglerWatch::exchange(int64_t step) {
  if (pending_) judge(pending_->step, pending_->seconds.wait());
  pending_.reset();
  const at::Tensor own = to_device_soon({run_.model.assembly.executor->take_compute_seconds()}, run_.device.device);
  const at::Tensor all = at::empty({run_.world.size}, own.options());
  run_.communicators.world->all_gather({all}, {own})->wait();
  pending_.emplace(Pending{step, HostCopy(all)});
  if (!run_.device.device.is_cpu()) return;
  judge(step, pending_->seconds.wait());
  pending_.reset();
}

void StragglerWatch::judge(int64_t step, std::span<const double> seconds) {
  const std::vector<double> scores = straggler_scores(seconds, work_);
  for (const int64_t rank : count_.add(scores)) report(step, rank, scores[static_cast<size_t>(rank)]);
}

// Every rank has come to the same verdict: the slow one says where it is, and rank 0 waits for that.
void StragglerWatch::report(int64_t step, int64_t rank, double ratio) {
  const std::string key = fmt::format("straggler/{}/{}", step, rank);
  c10d::Store& store = *run_.world.store;
  if (run_.world.rank == rank) {
    const ProcessorState processor = processor_state();
    nlohmann::json facts{{"host", host_name()}};
    if (processor.megahertz) facts["megahertz"] = *processor.megahertz;
    if (processor.celsius) facts["celsius"] = *processor.celsius;
    store.set(key, json_text(facts));
  }
  StragglerReport slow{.step = step, .rank = rank, .ratio = ratio};
  slow.steps = kSlowWindows * kWindowSteps;
  slow.ranks = std::count(work_.begin(), work_.end(), work_[static_cast<size_t>(rank)]);
  if (run_.world.rank != 0 && run_.world.rank != rank) return;
  read_words(store.get_to_str(key), static_cast<size_t>(rank), [&](const nlohmann::json& facts) {
    slow.host = facts.at("host").get<std::string>();
    if (facts.contains("megahertz")) slow.megahertz = facts.at("megahertz").get<double>();
    if (facts.contains("celsius")) slow.celsius = facts.at("celsius").get<double>();
  });
  run_.reporter->add(slow);
}

}  // namespace titan
