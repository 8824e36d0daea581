// Translates a checked config into the requests of other parts: ModelRequest, PlanRequest, data options. The lower
// parts do not know the config's sections; only this part maps options to their requests.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/corpus/document_source.h"
#include "titan/plan/architecture.h"
#include "titan/plan/plan.h"
#include "titan/stream/batch_stream.h"
#include "titan/text/chat.h"

namespace titan {

ModelRequest make_model_request(const JobConfig& config, int64_t tokenizer_vocabulary);
/// The job's model. Parameters of groups with lr_multiplier = 0 are frozen: not trainable.
ModelDescription describe_model(const JobConfig& config, int64_t tokenizer_vocabulary);
/// Whether compile.enable and compile.components request `component` ("model", "loss"); no effect on a CPU.
bool compiles(const JobConfig& config, std::string_view component);

RecomputeSelection make_recompute_selection(const JobConfig& config);
/// The float8 options; none if the model is not converted to float8.
std::optional<LinearFloat8Section> float8_options(const JobConfig& config);
/// The option that holds the degree of an axis.
struct DegreeOption {
  std::string key;  // "parallelism.tensor_parallel_degree"
  int64_t ParallelismSection::*degree;
};
DegreeOption degree_option(MeshAxis axis);
/// The mesh of `world` ranks with the config's degrees. Throws Error(bad_config) if they do not fit.
DeviceMesh make_mesh(const JobConfig& config, int64_t world);
/// Parts in which logits are computed where nothing else is known; the default of training.loss_chunks.
inline constexpr int64_t kUsualLossChunks = 8;
/// `on_gpu`: plans validation with fused kernels and CUDA graphs, as far as the config enables them.
PlanRequest make_plan_request(const JobConfig& config, const MeshPlace& place = {}, bool on_gpu = false);
/// The token positions of every sample that this rank reads.
SequenceShare make_sequence_share(const JobConfig& config, const MeshPlace& place);
/// Microbatches of one step: global / (local · data-parallel degree).
/// Throws Error(bad_config) when the ranks of the mesh do not divide it.
int64_t accumulation_steps(const JobConfig& config, const MeshPlace& place = {});

DatasetOptions make_training_dataset(const JobConfig& config);

/// Whether each data-parallel rank reads its own part of the corpus, as torchtitan splits it.
bool splits_by_rank(const JobConfig& config, const MeshPlace& place);

/// make_training_dataset with this rank's part and order of the corpus.
DatasetOptions make_training_part(const JobConfig& config, const MeshPlace& place);
/// The same for each source of a mixture, in order; otherwise of the corpus alone.
std::vector<DatasetOptions> make_training_sources(const JobConfig& config, const MeshPlace& place);
/// Why a run cannot resume from torchtitan's data position, as the end of a sentence; empty if it can.
std::string foreign_position_obstacle(const JobConfig& config, const MeshPlace& place, int64_t saved_ranks);

/// The template for the conversations of a dataset "chat".
ChatTemplateOptions make_chat_template(const JobConfig& config);

/// How documents of a dataset fill sequences.
ChunkPacking make_packing(const JobConfig& config, const std::string& dataset);

/// How documents fill the sequences of training, or of validation.
BatchOptions make_batch_options(const JobConfig& config, bool block_causal);

DatasetOptions make_validation_dataset(const JobConfig& config);
BatchPlan make_batch_plan(const JobConfig& config, const MeshPlace& place = {});
BatchPlan make_validation_plan(const JobConfig& config, const MeshPlace& place = {});

}  // namespace titan
