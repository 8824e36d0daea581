#include "titan/schedule/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Collects the actions of one rank. Microbatches of a stage pass in order, so an action only names its stage: forwards
/// and backwards (B or I) are counted per stage.
class Order {
 public:
  void forward(int stage) { add(next_forward(stage)); }
  void backward(int stage) { add(next_backward(stage)); }
  void input_gradient(int stage) {
    const int microbatch = backwards_[stage]++;
    add({ActionKind::input_gradient, stage, microbatch});
    deferred_.push_back({ActionKind::weight_gradient, stage, microbatch});
  }
  /// Adds the weight gradient of the oldest input gradient, of any stage, that lacks it. Does nothing if there is none.
  void oldest_weight_gradient() {
    weight_gradient_where([](const Action&) { return true; });
  }
  /// The same for one stage only.
  void weight_gradient(int stage) {
    weight_gradient_where([stage](const Action& action) { return action.stage == stage; });
  }
  void overlapped(int forward_stage, int backward_stage) {
    Action both{ActionKind::overlap};
    both.parts = {next_forward(forward_stage), next_backward(backward_stage)};
    add(std::move(both));
  }

  int forwards(int stage) { return forwards_[stage]; }
  int deferred(int stage) const {
    return static_cast<int>(
        std::count_if(deferred_.begin(), deferred_.end(), [&](const Action& w) { return w.stage == stage; }));
  }
  bool has_deferred() const { return !deferred_.empty(); }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  Action next_forward(int stage) { return {ActionKind::forward, stage, forwards_[stage]++}; }
  Action next_backward(int stage) { return {ActionKind::backward, stage, backwards_[stage]++}; }
  void add(Action action) { actions_.push_back(std::move(action)); }
  template <class Wanted>
  void weight_gradient_where(const Wanted& wanted) {
    auto found = std::find_if(deferred_.begin(), deferred_.end(), wanted);
    if (found == deferred_.end()) return;
    add(*found);
    deferred_.erase(found);
  }

  std::vector<Action> actions_;
  std::map<int, int> forwards_;
  std::map<int, int> backwards_;
  std::deque<Action> deferred_;
};

/// The pattern of all schedules that alternate: `warm` forwards, then forwards and backwards in turn, then the
/// remaining backwards. `total` of each; forward(k) and backward(k) add the k-th.
template <class Forward, class Backward>
void alternate(int total, int warm, const Forward& forward, const Backward& backward) {
  for (int k = 0; k < total + warm; ++k) {
    if (k < total) forward(k);
    if (k >= warm) backward(k - warm);
  }
}

/// The order of an interleaved schedule's stages on a rank: a round of microbatches through one stage, the same
/// microbatches through the next, then the next round. Backward goes from the last stage to the first.
struct Interleaving {
  PipelineShape shape;
  int rank;
  int round = shape.microbatches / std::max(1, shape.microbatches / shape.ranks);

  int total() const { return shape.microbatches * shape.stages_per_rank; }
  int forward_stage(int k) const { return k / round % shape.stages_per_rank * shape.ranks + rank; }
  int backward_stage(int k) const {
    return (shape.stages_per_rank - 1 - k / round % shape.stages_per_rank) * shape.ranks + rank;
  }
  /// Forwards before the first backward: those that the rank's last stage waits for, and `per_hop` more for every rank
  /// between this one and the last.
  int warm_up(int per_hop) const {
    return std::min((shape.stages_per_rank - 1) * round + per_hop * (shape.ranks - 1 - rank), total());
  }
};

/// The two stages of a rank in a V schedule.
std::array<int, 2> v_stages(const PipelineShape& shape, int rank) { return {rank, 2 * shape.ranks - 1 - rank}; }

// All orders agree with PyTorch 2.11 (tests/reference/schedules_test.py); docs/schedules.md explains them with
// pictures.

/// True if the microbatches divide into equal rounds. A round passes through one stage before the rank's next stage;
/// there are max(1, microbatches / ranks) rounds.
bool rounds_are_equal(const PipelineShape& shape) {
  return shape.microbatches % std::max(1, shape.microbatches / shape.ranks) == 0;
}

std::vector<Action> gpipe_order(const PipelineShape& shape, int rank) {
  Order order;
  alternate(
      shape.microbatches, shape.microbatches, [&](int) { order.forward(rank); }, [&](int) { order.backward(rank); });
  return order.take();
}

std::vector<Action> one_forward_one_backward_order(const PipelineShape& shape, int rank) {
  Order order;
  alternate(
      shape.microbatches, shape.ranks - 1 - rank, [&](int) { order.forward(rank); },
      [&](int) { order.backward(rank); });
  return order.take();
}

std::vector<Action> looped_breadth_first_order(const PipelineShape& shape, int rank) {
  const std::vector<int> stages = stages_of_rank(Placement::loop, shape, rank);
  std::vector<Action> actions;
  for (const int stage : stages) {
    for (int m = 0; m < shape.microbatches; ++m) actions.push_back({ActionKind::forward, stage, m});
  }
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    for (int m = shape.microbatches - 1; m >= 0; --m) actions.push_back({ActionKind::backward, *stage, m});
  }
  return actions;
}

std::vector<Action> interleaved_order(const PipelineShape& shape, int rank) {
  const Interleaving path{shape, rank};
  Order order;
  alternate(
      path.total(), path.warm_up(2), [&](int k) { order.forward(path.forward_stage(k)); },
      [&](int k) { order.backward(path.backward_stage(k)); });
  return order.take();
}

std::vector<Action> interleaved_zero_bubble_order(const PipelineShape& shape, int rank) {
  const Interleaving path{shape, rank};
  Order order;
  auto backward = [&](int k) {
    order.input_gradient(path.backward_stage(k));
    // A rank defers as many weight gradients as there are ranks before it: they fill its wait at the end.
    if (k >= rank) order.oldest_weight_gradient();
  };
  alternate(
      path.total(), path.warm_up(1), [&](int k) { order.forward(path.forward_stage(k)); }, backward);
  while (order.has_deferred()) order.oldest_weight_gradient();
  return order.take();
}

std::vector<Action> v_zero_bubble_order(const PipelineShape& shape, int rank) {
  const auto [down, up] = v_stages(shape, rank);
  const int after = shape.ranks - rank;
  // The pattern needs that many microbatches; those that do not exist are removed at the end.
  const int microbatches = std::max(2 * shape.ranks - 1, shape.microbatches);
  Order order;
  auto whole_backward = [&order](int stage) {
    order.input_gradient(stage);
    order.weight_gradient(stage);
  };
  for (int i = 0; i < 2 * after - 1; ++i) order.forward(down);
  for (int i = 0; i < rank; ++i) {
    order.forward(up);
    order.forward(down);
  }
  for (int i = 0; i < after; ++i) {
    order.forward(up);
    whole_backward(up);
  }
  while (order.forwards(up) < microbatches) {
    if (order.forwards(down) < microbatches) order.forward(down);
    whole_backward(down);
    order.forward(up);
    whole_backward(up);
  }
  for (int i = 0; i < rank; ++i) {
    order.input_gradient(down);
    order.input_gradient(up);
  }
  for (int i = 0; i < after; ++i) {
    order.input_gradient(down);
    order.weight_gradient(down);
  }
  for (const int stage : {up, down}) {
    while (order.deferred(stage) > 0) order.weight_gradient(stage);
  }
  std::vector<Action> actions = order.take();
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= shape.microbatches; });
  return actions;
}

std::vector<Action> dual_pipe_v_order(const PipelineShape& shape, int rank) {
  const auto [down, up] = v_stages(shape, rank);
  const int after = shape.ranks - 1 - rank;
  Order order;
  for (int i = 0; i < 2 * after; ++i) order.forward(down);
  for (int i = 0; i <= rank; ++i) {
    order.forward(down);
    order.forward(up);
  }
  for (int i = 0; i < after; ++i) {
    order.input_gradient(up);
    order.oldest_weight_gradient();
    order.forward(up);
  }
  for (int i = 0; i < shape.microbatches - 2 * shape.ranks + rank + 1; ++i) {
    // At the turn of the V, the first pair runs one after the other.
    if (i == 0 && after == 0) {
      order.forward(down);
      order.backward(up);
    } else {
      order.overlapped(down, up);
    }
    order.overlapped(up, down);
  }
  for (int i = 0; i < after; ++i) {
    order.backward(up);
    order.overlapped(up, down);
  }
  // From halfway on, weight gradients are deferred: they fill the rank's wait for the others at the end. The backward
  // pass at the half is one of the upper stage on odd ranks, and one of the lower stage on even ranks.
  const int last_whole = (rank + 1) / 2 * 2 - (rank % 2 == 1 ? 1 : 0);
  auto late_backward = [&](int number, int stage) {
    if (number > last_whole) return order.input_gradient(stage);
    order.backward(stage);
  };
  for (int i = 0; i <= rank; ++i) {
    late_backward(2 * i, up);
    late_backward(2 * i + 1, down);
  }
  for (int i = 0; i < after; ++i) {
    order.oldest_weight_gradient();
    order.input_gradient(down);
  }
  while (order.has_deferred()) order.oldest_weight_gradient();
  return order.take();
}

// Stands for no limit: the layers of a model limit its stages long before.
constexpr int kAnyNumber = 1'000;

bool any_number(const PipelineShape&) { return true; }
bool at_least_ranks(const PipelineShape& shape) { return shape.microbatches >= shape.ranks; }
bool at_least_stages(const PipelineShape& shape) { return shape.microbatches >= shape.stages(); }

constexpr std::string_view kRounds =
    "needs microbatches in equal rounds, whose number is microbatches / ranks, rounded down";

constexpr std::array<ScheduleFamily, 7> kFamilies{{
    {"GPipe", Placement::loop, 1, 1, false, any_number, "", gpipe_order},
    {"1F1B", Placement::loop, 1, 1, false, at_least_ranks, "needs at least as many microbatches as ranks",
     one_forward_one_backward_order},
    {"Interleaved1F1B", Placement::loop, 2, kAnyNumber, false, rounds_are_equal, kRounds, interleaved_order},
    {"LoopedBFS", Placement::loop, 2, kAnyNumber, false, any_number, "", looped_breadth_first_order},
    {"InterleavedZeroBubble", Placement::loop, 2, kAnyNumber, true, rounds_are_equal, kRounds,
     interleaved_zero_bubble_order},
    {"ZBVZeroBubble", Placement::v, 2, 2, true, any_number, "", v_zero_bubble_order},
    {"DualPipeV", Placement::v, 2, 2, true, at_least_stages, "needs at least as many microbatches as stages",
     dual_pipe_v_order},
}};

bool stages_fit(const ScheduleFamily& family, int stages_per_rank) {
  return stages_per_rank >= family.least_stages_per_rank && stages_per_rank <= family.most_stages_per_rank;
}

std::string counted(int number, std::string_view what, std::string_view plural = "s") {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : plural);
}

std::string stages_problem(const ScheduleFamily& family, const PipelineShape& shape) {
  const bool one_number = family.least_stages_per_rank == family.most_stages_per_rank;
  const int nearest =
      shape.stages_per_rank < family.least_stages_per_rank ? family.least_stages_per_rank : family.most_stages_per_rank;
  return fmt::format("{} runs {}{} per rank, and {} asked for; the nearest legal number is {} ({} in all)", family.name,
                     one_number ? "" : "at least ", counted(family.least_stages_per_rank, "stage"),
                     shape.stages_per_rank == 1 ? "1 is" : fmt::format("{} are", shape.stages_per_rank), nearest,
                     nearest * shape.ranks);
}

std::string microbatches_problem(const ScheduleFamily& family, const PipelineShape& shape) {
  std::vector<std::string> legal;
  for (const int count : nearest_microbatches(family, shape)) legal.push_back(std::to_string(count));
  return fmt::format("{} {}: {} and {} do not fit; {} {}", family.name, family.microbatch_rule,
                     counted(shape.ranks, "rank"), counted(shape.microbatches, "microbatch", "es"),
                     legal.size() == 1 ? "the nearest legal number is" : "the nearest legal numbers are",
                     join(legal, " and "));
}

}  // namespace

int rank_of_stage(Placement placement, int ranks, int stage) {
  const bool back = placement == Placement::v && stage / ranks % 2 == 1;
  return back ? ranks - 1 - stage % ranks : stage % ranks;
}

std::vector<int> stages_of_rank(Placement placement, const PipelineShape& shape, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < shape.stages(); ++stage) {
    if (rank_of_stage(placement, shape.ranks, stage) == rank) stages.push_back(stage);
  }
  return stages;
}

std::span<const ScheduleFamily> schedule_families() { return kFamilies; }

const ScheduleFamily* find_schedule(std::string_view name) {
  for (const ScheduleFamily& family : kFamilies) {
    if (to_lower(family.name) == to_lower(name)) return &family;
  }
  return nullptr;
}

std::vector<int> nearest_microbatches(const ScheduleFamily& family, const PipelineShape& shape) {
  if (shape.ranks < 1 || !stages_fit(family, shape.stages_per_rank)) return {};
  auto fits = [&](int count) {
    PipelineShape other = shape;
    other.microbatches = count;
    return family.microbatches_fit(other);
  };
  std::vector<int> legal;
  if (shape.microbatches >= 1 && fits(shape.microbatches)) return {shape.microbatches};
  for (int below = shape.microbatches - 1; below >= 1 && legal.empty(); --below) {
    if (fits(below)) legal.push_back(below);
  }
  int above = std::max(1, shape.microbatches + 1);
  while (!fits(above)) ++above;  // ends: every schedule takes some multiple of the ranks or of the stages
  legal.push_back(above);
  return legal;
}

std::vector<std::string> shape_problems(const ScheduleFamily& family, const PipelineShape& shape) {
  std::vector<std::string> problems;
  auto at_least_one = [&](int number, std::string_view what) {
    if (number >= 1) return true;
    problems.push_back(fmt::format("{} {} cannot run a pipeline; the nearest legal number is 1", number, what));
    return false;
  };
  const bool ranks = at_least_one(shape.ranks, "ranks");
  const bool stages = at_least_one(shape.stages_per_rank, "stages per rank");
  const bool microbatches = at_least_one(shape.microbatches, "microbatches");
  if (stages && ranks && !stages_fit(family, shape.stages_per_rank)) problems.push_back(stages_problem(family, shape));
  if (!ranks || !microbatches) return problems;
  PipelineShape legal = shape;  // also report microbatches that do not fit, for a legal number of stages
  legal.stages_per_rank = std::clamp(shape.stages_per_rank, family.least_stages_per_rank, family.most_stages_per_rank);
  if (!family.microbatches_fit(legal)) problems.push_back(microbatches_problem(family, legal));
  return problems;
}

ScheduleTable generate(const ScheduleFamily& family, const PipelineShape& shape) {
  TITAN_CHECK(shape_problems(family, shape).empty(), family.name, shape.ranks, shape.stages_per_rank,
              shape.microbatches);
  ScheduleTable table;
  for (int rank = 0; rank < shape.ranks; ++rank) table.push_back(family.order(shape, rank));
  return table;
}

}  // namespace titan
