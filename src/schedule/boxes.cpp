#include "boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace titan {

ScheduleRun run_of(ScheduleTable table, ActionTimes times) {
  Simulation simulation = simulate(table, times);
  return {std::move(table), std::move(times), std::move(simulation)};
}

namespace detail {

std::vector<int> stages_in(const std::vector<Action>& actions) {
  std::set<int> stages;
  for (const Action& action : actions) {
    for (const Action& leaf : leaves(action)) {
      if (is_compute(leaf.kind)) stages.insert(leaf.stage);
    }
  }
  return {stages.begin(), stages.end()};
}

Boxes boxes_of(const ScheduleRun& run) {
  bool one_stage_each = true;
  for (const std::vector<Action>& actions : run.table) one_stage_each &= stages_in(actions).size() <= 1;
  Boxes boxes;
  for (size_t rank = 0; rank < run.table.size(); ++rank) {
    const std::vector<int> stages = stages_in(run.table[rank]);
    for (size_t i = 0; i < run.table[rank].size(); ++i) {
      double begin = run.simulation.spans[rank][i].begin;
      for (const Action& leaf : leaves(run.table[rank][i])) {
        if (!is_compute(leaf.kind)) continue;
        const double duration = run.times.of_stage(leaf.stage).of(leaf.kind);
        if (duration <= 0) continue;
        Box box{static_cast<int>(rank), 0, {begin, begin + duration}, leaf, {}};
        box.chunk = static_cast<int>(std::find(stages.begin(), stages.end(), leaf.stage) - stages.begin());
        box.label = one_stage_each ? fmt::format("{}{}", word_of(leaf.kind), leaf.microbatch) : to_string(leaf);
        boxes.shortest = boxes.all.empty() ? duration : std::min(boxes.shortest, duration);
        boxes.widest = std::max(boxes.widest, box.label.size());
        boxes.all.push_back(std::move(box));
        begin += duration;
      }
    }
  }
  return boxes;
}

double axis_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= least) return power * factor;
  }
  return power * 10;
}

}  // namespace detail
}  // namespace titan
