// The simulator tells the truth: threads as ranks run lowered tables with sleeps in place of computing, and the clock
// on the wall says what the simulation said. Threads that sleep need no cores, so all schedules run at the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "shapes.h"
#include "titan/schedule/check.h"
#include "titan/schedule/lowering.h"
#include "titan/schedule/simulator.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;

constexpr auto kUnit = std::chrono::milliseconds(80);  // of simulated time
constexpr double kTransfer = 0.1;

Clock::duration real(double units) { return std::chrono::duration_cast<Clock::duration>(kUnit * units); }

/// What passes between ranks and stages: (is a gradient, stage that made it, microbatch) → when it can be used.
class Mail {
 public:
  using Key = std::tuple<bool, int, int>;

  void deliver(const Key& key, Moment when) {
    const std::lock_guard lock(mutex_);
    arrivals_[key] = when;
    changed_.notify_all();
  }

  /// One side of a transfer on `channel` (direction, from, to); the second decides when it arrives.
  void post(const Key& key, const std::tuple<bool, int, int>& channel) {
    const std::lock_guard lock(mutex_);
    const Moment now = Clock::now();
    if (posted_.insert(key).second) return;
    Moment& free = channels_[channel];
    free = std::max(free, now) + real(kTransfer);
    arrivals_[key] = free;
    changed_.notify_all();
  }

  void wait(const Key& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrivals_.count(key) > 0; });
    const Moment when = arrivals_[key];
    lock.unlock();
    std::this_thread::sleep_until(when);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Moment> arrivals_;
  std::set<Key> posted_;
  std::map<std::tuple<bool, int, int>, Moment> channels_;
};

/// Runs one rank's list; what the actions mean is written down here once more, apart from the library's own code.
class SleepingRank {
 public:
  SleepingRank(const std::vector<Action>& actions, const TableFacts& facts, const ActionTimes& times, Mail& mail)
      : actions_(actions), facts_(facts), times_(times), mail_(mail) {}

  void run() {
    for (const Action& action : actions_) {
      for (const Action& leaf : leaves(action)) one(leaf);
    }
  }

  int peak() const { return peak_; }

 private:
  int rank_of(int stage) const { return facts_.rank_of_stage[static_cast<size_t>(stage)]; }

  void one(const Action& action) {
    const int s = action.stage, m = action.microbatch, last = facts_.stages - 1;
    switch (action.kind) {
      case ActionKind::forward:
        if (s > 0) mail_.wait({false, s - 1, m});
        peak_ = std::max(peak_, ++live_);
        compute(action);
        if (s < last && rank_of(s) == rank_of(s + 1)) mail_.deliver({false, s, m}, Clock::now());
        break;
      case ActionKind::backward:
      case ActionKind::input_gradient:
        if (s < last) mail_.wait({true, s + 1, m});
        compute(action);
        if (s > 0 && rank_of(s) == rank_of(s - 1)) mail_.deliver({true, s, m}, Clock::now());
        if (action.kind == ActionKind::backward) --live_;
        break;
      case ActionKind::weight_gradient:
        compute(action);
        --live_;
        break;
      case ActionKind::send_forward:
        mail_.post({false, s, m}, {false, rank_of(s), rank_of(s + 1)});
        break;
      case ActionKind::receive_forward:
        mail_.post({false, s - 1, m}, {false, rank_of(s - 1), rank_of(s)});
        break;
      case ActionKind::send_backward:
        mail_.post({true, s, m}, {true, rank_of(s), rank_of(s - 1)});
        break;
      case ActionKind::receive_backward:
        mail_.post({true, s + 1, m}, {true, rank_of(s + 1), rank_of(s)});
        break;
      default:  // weights and reductions cost nothing here
        break;
    }
  }

  void compute(const Action& action) {
    std::this_thread::sleep_for(real(times_.of_stage(action.stage).of(action.kind)));
  }

  const std::vector<Action>& actions_;
  const TableFacts& facts_;
  const ActionTimes& times_;
  Mail& mail_;
  int live_ = 0;
  int peak_ = 0;
};

struct Measured {
  double units = 0;
  std::vector<int> peaks;
};

Measured run_with_sleeps(const ScheduleTable& table, const ActionTimes& times) {
  const TableFacts facts = facts_of(table);
  Mail mail;
  std::vector<SleepingRank> ranks;
  for (const std::vector<Action>& actions : table) ranks.emplace_back(actions, facts, times, mail);
  const Moment start = Clock::now();
  std::vector<std::thread> threads;
  for (SleepingRank& rank : ranks) threads.emplace_back([&rank] { rank.run(); });
  for (std::thread& thread : threads) thread.join();
  Measured measured{std::chrono::duration<double>(Clock::now() - start) / kUnit, {}};
  for (const SleepingRank& rank : ranks) measured.peaks.push_back(rank.peak());
  return measured;
}

TEST(TimedRanks, EveryScheduleOnEightRanksTakesTheSimulatedTimeAndKeepsTheSimulatedActivations) {
  ActionTimes times;
  times.stage = {1, 1.2, 0.8};
  times.transfer = kTransfer;
  struct Case {
    NamedShape shape;
    ScheduleTable table;
    Simulation simulated;
  };
  std::vector<Case> cases;
  for (const ScheduleFamily& family : schedule_families()) {
    const PipelineShape shape{8, family.least_stages_per_rank, family.name == "DualPipeV" ? 16 : 8};
    ScheduleTable table = lower(generate(family, shape));
    Simulation simulated = simulate(table, times);
    cases.push_back({{&family, shape}, std::move(table), std::move(simulated)});
  }
  // A machine that is busy with other things makes threads late and never early: the best of three runs counts.
  std::vector<double> ratio(cases.size(), 1e9);
  auto is_late = [](double one) { return one > 1.05; };
  for (int attempt = 0; attempt < 3 && std::any_of(ratio.begin(), ratio.end(), is_late); ++attempt) {
    std::vector<std::future<Measured>> runs;
    for (const Case& one : cases) {
      runs.push_back(std::async(std::launch::async, [&one, &times] { return run_with_sleeps(one.table, times); }));
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const Measured measured = runs[i].get();
      ratio[i] = std::min(ratio[i], measured.units / cases[i].simulated.time);
      for (size_t rank = 0; rank < measured.peaks.size(); ++rank) {
        EXPECT_EQ(measured.peaks[rank], cases[i].simulated.ranks[rank].peak_live) << cases[i].shape.text();
      }
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_NEAR(ratio[i], 1, 0.05) << cases[i].shape.text() << ", measured : simulated";
  }
}

}  // namespace
}  // namespace titan
