// Translates a checked config into the requests of other parts: ModelRequest, PlanRequest, data options. The lower
// parts do not know the config's sections; only this file maps options to their requests, and a model's error to its
// option.
#pragma once

#include <optional>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/data/batch_stream.h"
#include "titan/data/document_source.h"
#include "titan/model/model.h"
#include "titan/parallel/plan.h"
#include "titan/train/batch.h"

namespace titan {

ModelRequest make_model_request(const JobConfig& config, int64_t tokenizer_vocabulary);
RecomputeSelection make_recompute_selection(const JobConfig& config);
/// None when the model has no converter to float8.
std::optional<Float8Request> make_float8_request(const JobConfig& config);
/// The mesh that the config's degrees make of `world` ranks. Throws Error(bad_config) when they do not fit.
DeviceMesh make_mesh(const JobConfig& config, int64_t world);
/// `on_gpu`: what is planned of validation is that of fused kernels and graphs, as far as the config asks for them.
PlanRequest make_plan_request(const JobConfig& config, const MeshPlace& place = {}, bool on_gpu = false);
/// The places of every sample that this rank reads.
SequenceShare make_sequence_share(const JobConfig& config, const MeshPlace& place);
/// Microbatches of one step: global / (local · data-parallel degree).
/// Throws Error(bad_config) when the ranks of the mesh do not divide it.
int64_t accumulation_steps(const JobConfig& config, const MeshPlace& place = {});

DatasetOptions make_training_dataset(const JobConfig& config);

/// Whether each data-parallel rank reads its own part of the corpus, as torchtitan splits it.
bool splits_by_rank(const JobConfig& config, const MeshPlace& place);

/// The chunks that training reads: of one corpus or a mixture, whole or this rank's part, in order or shuffled. The
/// names of what is read go to `description`. Throws Error(bad_data).
std::unique_ptr<ChunkSource> open_training_chunks(const JobConfig& config, const MeshPlace& place,
                                                  const std::shared_ptr<const Tokenizer>& tokenizer,
                                                  const BatchOptions& options, std::string& description);
/// What keeps a run from going on where torchtitan's loader was, as the end of a sentence; empty when nothing does.
std::string foreign_position_obstacle(const JobConfig& config, const MeshPlace& place, int64_t saved_ranks);
/// The documents that this rank reads of the one corpus of training.
std::unique_ptr<DocumentSource> open_training_documents(const JobConfig& config, const MeshPlace& place);

/// What encodes the conversations of a dataset "chat". Throws Error(bad_config) when the template asked for is not
/// there or the tokenizer lacks its tokens.
std::shared_ptr<const ChatTemplate> open_chat_template(const JobConfig& config,
                                                       const std::shared_ptr<const Tokenizer>& tokenizer);

/// How documents of a dataset fill sequences.
ChunkPacking make_packing(const JobConfig& config, const std::string& dataset);

/// How documents fill the sequences of training, or of validation.
BatchOptions make_batch_options(const JobConfig& config, bool block_causal);

/// What contradicts itself in the data's options and needs more than their own values to see.
std::vector<Problem> check_sources(const JobConfig& config, const Origins& origins);
DatasetOptions make_validation_dataset(const JobConfig& config);
BatchPlan make_batch_plan(const JobConfig& config, const MeshPlace& place = {});
BatchPlan make_validation_plan(const JobConfig& config, const MeshPlace& place = {});

/// The model part's own check of a config: does the family have the flavor, do the sizes fit together. Joins the list
/// that config prints; needs no tokenizer.
std::vector<Problem> check_model(const JobConfig& config, const Origins& origins);

}  // namespace titan
