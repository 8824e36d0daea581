// The rows of the layout matrices (tests/train/layouts.tsv and others that tests add), and their plans. No tensors: the
// programs of a row are proved without running it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/checkout.h"
#include "support/experts.h"
#include "support/side_channel.h"
#include "titan/plan/architecture.h"
#include "titan/plan/plan.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {

/// One row of layouts.tsv.
struct LayoutRow {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1;
  std::string layout = "single";
  int64_t accumulation = 1;
  bool unequal_masks = false;
  std::string reshard = "default";
  bool offload = false;
  std::string recompute = "none";
  bool tied = false;
  bool async_tensor = false;
  bool sockets = false;  // between ranks, in place of the memory they share
  ElementType compute = ElementType::float32;
  ElementType reduce = ElementType::float32;
  ElementType master = ElementType::float32, state = ElementType::float32;
  uint64_t rounding_seed = 0;
  bool host_activations = false, host_moments = false;
  std::vector<std::string> keep_fp32;
  std::optional<LinearFloat8Section> float8;
  std::string frozen;  // expression of the names of parameters that are not trained; empty: all are
  std::string second;  // expression of the names of parameters that are their unit's second weight group; empty: none
  std::vector<MeshAxis> second_axes;  // over which that group is sharded
  bool loss_parallel = true;
  double max_norm = 1.0;
  bool whole_matrices = false;                    // stepped by the optimizer of support/whole_matrices.h
  bool muon = false;                              // stepped by Muon
  std::function<void(PlanRequest&)> change = {};  // made first to the request; the same for equal other members
  bool side_channel = false;                      // the model of support/side_channel.h
  double side_factor = 0.5;
  bool experts = false;           // the model of support/experts.h, spread over the ranks of dp_shard
  bool step_in_backward = false;  // gradients are gone when the step is over, and are not handed out
  bool graphs = false;            // blocks are recorded and replayed
  bool fused = false;             // the fused kernels, compiled for the host
  Rotation rotation = Rotation::all_gather;
  LoadBalance balance = LoadBalance::head_tail;
  bool documents = false;     // several in every sample, which do not see each other
  int64_t length = 64;        // of a sample
  int64_t global_batch = 16;  // samples of a step; every layout's ranks and microbatches divide it
  ModelOverrideSection sizes{
      .dim = 64, .n_layers = 4, .n_heads = 8, .n_kv_heads = 4, .multiple_of = 16, .vocab_size = 203};

  int64_t pipeline = 1;           // ranks of it
  std::string schedule = "1F1B";  // a name, or the text of a CSV file
  int64_t stages_per_rank = 1;
  int64_t microbatches = 4;  // of the pipeline, in each accumulated microbatch

  int64_t world() const { return pipeline * replicate * shard * context * tensor; }
  std::string name() const;
};

/// A row called `layout`, with what differs from a single process.
inline LayoutRow changed_row(const std::string& layout, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = layout;
  change(row);
  return row;
}

inline ModelRequest matrix_request(const LayoutRow& row) {
  ModelRequest request;
  request.model.name = row.tied ? "llama3_2" : "llama3";
  request.model.flavor = row.tied ? "1B" : row.documents ? "debugmodel_flex_attn" : "debugmodel";
  request.sequence_length = row.length;
  request.model.override_sizes = row.sizes;
  return request;
}

inline ModelDescription matrix_model(const LayoutRow& row) {
  const ModelRequest request = matrix_request(row);
  ModelDescription model = describe_model(request);
  if (row.side_channel) add_side_channel(model, row.side_factor);
  if (row.experts) add_experts(model, row.shard);
  const std::regex frozen(row.frozen), second(row.second);
  for (UnitDescription& unit : model.units) {
    if (!row.second.empty()) unit.groups.push_back({"second", row.second_axes});
    for (ParameterSpec& parameter : unit.parameters) {
      if (!row.frozen.empty()) parameter.trainable = !std::regex_search(parameter.name, frozen);
      if (!row.second.empty() && std::regex_search(parameter.name, second)) parameter.group = 1;
    }
  }
  return model;
}

inline RecomputeSelection recompute_of(const std::string& name) {
  if (name == "op") return {RecomputeSelection::Mode::selective_operations, 1, {}};
  if (name == "full") return {RecomputeSelection::Mode::full, 1, {}};
  return {};
}

/// Sets a plan's updates to those of the optimizer of support/whole_matrices.h: matrices of blocks are updated whole.
inline void update_whole_matrices(PlanRequest& request) {
  UpdateDescription matrices{.moments = {"momentum"}, .whole_matrices = true};
  matrices.operations = [](int64_t rows, int64_t columns) {
    return 4.0 * static_cast<double>(rows * columns * std::min(rows, columns));
  };
  request.updates = {UpdateDescription{.moments = {"momentum"}}, std::move(matrices)};
  request.update_of = [](const UnitDescription& unit, const ParameterSpec& spec) -> size_t {
    return unit.role == UnitRole::block && spec.shape.size() == 2 ? 1 : 0;
  };
}

inline PlanRequest matrix_plan(const LayoutRow& row, const MeshPlace& place) {
  PlanRequest request;
  if (row.whole_matrices) update_whole_matrices(request);
  if (row.change) row.change(request);
  request.samples = row.global_batch / (row.replicate * row.shard * row.accumulation);
  request.sequence_length = row.length;
  request.accumulation = row.accumulation;
  request.training.mixed_precision_param = row.compute;
  request.training.mixed_precision_reduce = row.reduce;
  request.training.dtype = row.master;
  request.optimizer.state_dtype = row.state;
  request.recompute = recompute_of(row.recompute);
  request.place = place;
  request.cuda_graphs = row.graphs;
  request.parallelism.fsdp_reshard_after_forward = row.reshard == "always"  ? ReshardPolicy::always
                                                   : row.reshard == "never" ? ReshardPolicy::never
                                                                            : ReshardPolicy::standard;
  request.training.keep_fp32 = row.keep_fp32;
  request.float8 = row.float8;
  request.parallelism.disable_loss_parallel = !row.loss_parallel;
  request.parallelism.enable_async_tensor_parallel = row.async_tensor;
  request.optimizer.early_step_in_backward = row.step_in_backward;
  request.parallelism.context_parallel_rotate_method = row.rotation;
  request.parallelism.context_parallel_load_balancer = row.balance;
  request.training.enable_cpu_offload = row.offload;
  request.offload_activations = row.host_activations;
  request.optimizer.offload = row.host_moments;
  return request;
}

inline PipelinePart matrix_pipeline(const LayoutRow& row, const ModelDescription& model, const MeshPlace& place) {
  PipelineRequest request;
  request.ranks = static_cast<int>(row.pipeline);
  request.schedule = row.schedule;
  if (row.schedule.find(',') != std::string::npos) request.custom = parse_csv(row.schedule, "the row").table;
  request.local_batch_size = static_cast<int>(row.microbatches);
  request.chain = chain_of(model);
  request.split.default_stages_per_rank = static_cast<int>(row.stages_per_rank);
  const PipelinePlan planned = plan_pipeline(request);
  for (const PipelineProblem& problem : planned.problems) ADD_FAILURE() << problem.option << ": " << problem.what;
  return pipeline_part(planned, model, place.coordinate(MeshAxis::pp));
}

inline PlanRequest with_pipeline(PlanRequest request, const LayoutRow& row, const ModelDescription& model) {
  if (row.pipeline == 1) return request;
  request.pipeline = matrix_pipeline(row, model, request.place);
  request.samples /= row.microbatches;
  request.accumulation *= row.microbatches;
  return request;
}

/// The plan of one of the row's ranks.
inline Plan plan_of(const LayoutRow& row, int64_t rank) {
  const MeshPlace place{DeviceMesh({row.pipeline, row.replicate, row.shard, row.context, row.tensor}, row.world()),
                        rank};
  const ModelDescription model = matrix_model(row);
  return make_plan(model, with_pipeline(matrix_plan(row, place), row, model));
}

inline std::string LayoutRow::name() const {
  std::string text = layout;
  if (pipeline > 1 && schedule.find(',') == std::string::npos) text += "_" + schedule;
  if (stages_per_rank > 1) text += "_x" + std::to_string(stages_per_rank);
  if (pipeline > 1) text += "_m" + std::to_string(microbatches);
  if (accumulation > 1) text += "_accumulation" + std::to_string(accumulation);
  if (unequal_masks) text += "_masks";
  if (reshard != "default") text += "_" + reshard;
  if (offload) text += "_offload";
  if (recompute != "none") text += "_" + recompute;
  if (tied) text += "_tied";
  if (async_tensor) text += "_async";
  if (sockets) text += "_sockets";
  if (context > 1) text += rotation == Rotation::all_gather ? "_allgather" : "_alltoall";
  if (context > 1) text += balance == LoadBalance::head_tail ? "_headtail" : "_none";
  if (documents) text += "_documents";
  if (context > 1) text += "_" + std::to_string(length) + "tokens";
  if (!frozen.empty()) text += "_frozen";
  return text;
}

/// All rows of layouts.tsv.
inline std::vector<LayoutRow> layout_rows() {
  std::ifstream file(checkout() / "tests/train/layouts.tsv");
  std::string line;
  std::getline(file, line);  // the head
  std::vector<LayoutRow> rows;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    LayoutRow row;
    std::string masks, offload, tied, async, transport;
    words >> row.replicate >> row.shard >> row.tensor >> row.layout >> row.accumulation >> masks >> row.reshard >>
        offload >> row.recompute >> tied >> async >> transport;
    row.unequal_masks = masks == "unequal";
    row.offload = offload == "yes";
    row.tied = tied == "yes";
    row.async_tensor = async == "yes";
    row.sockets = transport == "sockets";
    if (row.shard == 3) row.global_batch = 12;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace titan
