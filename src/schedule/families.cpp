#include "titan/schedule/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "orders.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr int kAnyNumber = 1'000;

bool any_number(const PipelineShape&) { return true; }
bool at_least_ranks(const PipelineShape& shape) { return shape.microbatches >= shape.ranks; }
bool at_least_stages(const PipelineShape& shape) { return shape.microbatches >= shape.stages(); }

constexpr std::string_view kRounds =
    "takes microbatches in rounds, as many rounds as ranks fit into their number, which have to be equal";

constexpr std::array<ScheduleFamily, 7> kFamilies{{
    {"GPipe", Placement::loop, 1, 1, false, any_number, "", detail::gpipe_order},
    {"1F1B", Placement::loop, 1, 1, false, at_least_ranks, "needs at least as many microbatches as ranks",
     detail::one_forward_one_backward_order},
    {"Interleaved1F1B", Placement::loop, 2, kAnyNumber, false, detail::rounds_are_equal, kRounds,
     detail::interleaved_order},
    {"LoopedBFS", Placement::loop, 2, kAnyNumber, false, any_number, "", detail::looped_breadth_first_order},
    {"InterleavedZeroBubble", Placement::loop, 2, kAnyNumber, true, detail::rounds_are_equal, kRounds,
     detail::interleaved_zero_bubble_order},
    {"ZBVZeroBubble", Placement::v, 2, 2, true, any_number, "", detail::v_zero_bubble_order},
    {"DualPipeV", Placement::v, 2, 2, true, at_least_stages, "needs at least as many microbatches as stages",
     detail::dual_pipe_v_order},
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
  while (!fits(above)) ++above;  // a multiple of the ranks, or of the stages, is never far
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
  PipelineShape judged = shape;  // whether the microbatches fit is told in the same go, for a legal number of stages
  judged.stages_per_rank = std::clamp(shape.stages_per_rank, family.least_stages_per_rank, family.most_stages_per_rank);
  if (!family.microbatches_fit(judged)) problems.push_back(microbatches_problem(family, judged));
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
