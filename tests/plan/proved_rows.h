// Layouts whose programs are proved, and the ranks of one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/plan/rank_machine.h"
#include "support/layout_row.h"
#include "titan/plan/program.h"
#include "titan/schedule/families.h"

namespace titan {

inline LayoutRow row_with(std::string name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = std::move(name);
  change(row);
  return row;
}

/// Layouts of a model whose embedding and first block are frozen, and a part of its second.
inline std::vector<LayoutRow> frozen_rows() {
  std::vector<LayoutRow> rows{
      row_with("fsdp2", [](LayoutRow& row) { row.shard = 2, row.accumulation = 2; }),
      row_with("hsdp2x2_tp2", [](LayoutRow& row) { row.replicate = row.shard = row.tensor = 2; }),
      row_with("offload", [](LayoutRow& row) { row.shard = 2, row.offload = true; }),
      row_with("pp2", [](LayoutRow& row) { row.pipeline = 2, row.tied = true; })};
  rows.push_back(row_with("in_backward", [](LayoutRow& row) { row.shard = 2, row.step_in_backward = true; }));
  for (LayoutRow& row : rows) row.frozen = "^tok_embeddings|^layers.0|layers.1.*wq";
  return rows;
}

/// Rows of layouts.tsv, every schedule with every kind of sharding, and layouts that are in neither.
inline std::vector<LayoutRow> proved_rows() {
  std::vector<LayoutRow> all = layout_rows();
  for (const ScheduleFamily& family : schedule_families()) {
    for (const char* kind : {"plain", "fsdp_always", "hsdp_never", "offload", "tied_accumulation"}) {
      LayoutRow row;
      row.layout = std::string("pp2_") + kind;
      row.pipeline = 2;
      row.schedule = family.name;
      row.stages_per_rank = family.most_stages_per_rank == 1 ? 1 : 2;
      const std::string_view word = kind;
      if (word == "fsdp_always") row.shard = 2, row.reshard = "always";
      if (word == "hsdp_never") row.shard = 2, row.replicate = 2, row.reshard = "never", row.global_batch = 32;
      if (word == "offload") row.offload = true, row.shard = 2;
      if (word == "tied_accumulation") row.tied = true, row.accumulation = 2;
      all.push_back(row);
    }
  }
  for (const LayoutRow& row : frozen_rows()) all.push_back(row);
  all.push_back(row_with("whole_matrices_fsdp2xtp2",
                         [](LayoutRow& row) { row.shard = row.tensor = 2, row.whole_matrices = true; }));
  all.push_back(row_with("whole_matrices_hsdp2x2_pp2", [](LayoutRow& row) {
    row.replicate = row.shard = row.pipeline = 2, row.global_batch = 32, row.whole_matrices = true;
  }));
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{}, {MeshAxis::dp_shard}, {MeshAxis::cp}}) {
    for (const bool in_backward : {false, true}) {
      all.push_back(row_with(fmt::format("two_groups_{}_{}", axes.empty() ? "whole" : name(axes[0]), in_backward),
                             [&](LayoutRow& row) {
                               row.replicate = row.shard = row.context = 2;
                               row.second = "feed_forward";
                               row.second_axes = axes;
                               row.step_in_backward = in_backward;
                               row.reduce = in_backward ? ElementType::float32 : ElementType::bfloat16;
                             }));
    }
  }
  const auto narrow = [](LayoutRow& row) { row.compute = row.reduce = ElementType::bfloat16; };
  const auto float8 = [](LayoutRow& row, bool gathers, bool precomputes) {
    row.compute = ElementType::bfloat16;
    row.float8 = LinearFloat8Section{};
    row.float8->enable_fsdp_float8_all_gather = gathers;
    row.float8->precompute_float8_dynamic_scale_for_fsdp = precomputes;
    row.shard = 2;
  };
  all.push_back(row_with("alone", [](LayoutRow&) {}));
  all.push_back(row_with("alone_graphs", [](LayoutRow& row) { row.graphs = true, row.accumulation = 3; }));
  all.push_back(row_with("alone_offload", [](LayoutRow& row) { row.offload = true, row.accumulation = 2; }));
  all.push_back(row_with("alone_activations_away", [](LayoutRow& row) {
    row.host_activations = true, row.recompute = "full", row.accumulation = 2;
  }));
  all.push_back(row_with("ddp2_offload", [&](LayoutRow& row) { row.replicate = 2, row.offload = true, narrow(row); }));
  all.push_back(row_with("ddp2_narrow", [&](LayoutRow& row) { row.replicate = 2, narrow(row); }));
  all.push_back(row_with("hsdp_narrow", [&](LayoutRow& row) {
    row.replicate = row.shard = 2, narrow(row), row.keep_fp32 = {"layers.1"};
  }));
  all.push_back(row_with("fsdp2_float8", [&](LayoutRow& row) { float8(row, true, false), row.accumulation = 2; }));
  all.push_back(row_with("fsdp2_float8_precomputed", [&](LayoutRow& row) { float8(row, true, true), row.tensor = 2; }));
  all.push_back(row_with("fsdp2_float8_products", [&](LayoutRow& row) { float8(row, false, false); }));
  for (const bool offload : {false, true}) {
    all.push_back(row_with(offload ? "fsdp2_in_backward_offload" : "fsdp2_in_backward", [&](LayoutRow& row) {
      row.shard = 2, row.step_in_backward = true, row.accumulation = 2, row.offload = offload;
    }));
  }
  all.push_back(row_with("hsdp2x2_in_backward",
                         [](LayoutRow& row) { row.shard = row.replicate = 2, row.step_in_backward = true; }));
  return all;
}

/// All ranks of a row.
struct RowRanks {
  explicit RowRanks(const LayoutRow& row) {
    for (int64_t rank = 0; rank < row.world(); ++rank) {
      plans.push_back(plan_of(row, rank));
      programs.push_back(checked_programs(plans.back()));
    }
  }
  /// The first problem when rank 0 runs `changed`.
  std::string problem_with(std::span<const Program> changed) const {
    std::string problem = program_problem(plans[0], changed);
    if (!problem.empty() || plans.size() == 1) return problem;
    std::vector<RankPrograms> ranks;
    for (size_t r = 0; r < plans.size(); ++r) ranks.push_back({&plans[r], programs[r]});
    ranks[0].programs = changed;
    return mesh_problem(ranks);
  }
  /// True if its programs are not valid by these rules.
  bool refuses_by(const RuleTable& rules) const {
    std::vector<RankPrograms> ranks;
    for (size_t r = 0; r < plans.size(); ++r) {
      if (!program_problem(plans[r], programs[r], rules).empty()) return true;
      ranks.push_back({&plans[r], programs[r]});
    }
    return !mesh_problem(ranks, rules).empty();
  }
  std::vector<Plan> plans;
  std::vector<std::vector<Program>> programs;
};

}  // namespace titan
