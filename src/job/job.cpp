#include "titan/job/job.h"

#include <algorithm>
#include <cctype>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/parameter_groups.h"
#include "titan/job/updates.h"

namespace titan {
namespace {

DatasetOptions dataset_options(const JobConfig& config, const std::string& dataset,
                               const std::optional<std::string>& path) {
  DatasetOptions options;
  options.dataset = dataset;
  options.path = path.value_or("");
  options.text_field = config.data.text_field;
  options.bad_record = config.data.bad_record == "skip" ? BadRecord::skip : BadRecord::error;
  options.ignore_fields = config.data.ignore_fields;
  // The job's seed is left out, as in torchtitan: runs with two seeds read the same data, and only weights differ.
  return options;
}

}  // namespace

ModelRequest make_model_request(const JobConfig& config, int64_t tokenizer_vocabulary) {
  ModelRequest request{config.model, tokenizer_vocabulary, config.training.seq_len, trains_on_chat(config)};
  if (config.validation.enable) request.sequence_length = std::max(request.sequence_length, config.validation.seq_len);
  return request;
}

ModelDescription describe_model(const JobConfig& config, int64_t tokenizer_vocabulary) {
  ModelDescription model = describe_model(make_model_request(config, tokenizer_vocabulary));
  std::vector<ParameterSpec*> parameters;
  std::vector<std::string> names;
  for (UnitDescription& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameters.push_back(&parameter);
      names.push_back(parameter.name);
    }
  }
  for (const ParameterGroup& group : assign_parameter_groups(names, config.optimizer.param_groups)) {
    if (group.lr_multiplier != 0) continue;
    for (const size_t member : group.members) parameters[member]->trainable = false;
  }
  return model;
}

bool compiles(const JobConfig& config, std::string_view component) {
  const std::vector<std::string>& components = config.compile.components;
  return config.compile.enable && std::find(components.begin(), components.end(), component) != components.end();
}

RecomputeSelection make_recompute_selection(const JobConfig& config) {
  const ActivationCheckpointSection& section = config.activation_checkpoint;
  RecomputeSelection selection;
  if (section.mode == "none") return selection;
  if (section.mode == "full") return {RecomputeSelection::Mode::full, 1, {}};
  const std::string& option = section.selective_ac_option;
  if (option == "op") return {RecomputeSelection::Mode::selective_operations, 1, {}};
  if (std::all_of(option.begin(), option.end(), [](unsigned char c) { return std::isdigit(c); })) {
    return {RecomputeSelection::Mode::selective_layers, std::stoll(option), {}};
  }
  selection.mode = RecomputeSelection::Mode::selective_parts;
  for (const std::string& part : split(option, ',')) selection.parts.push_back(trim(part));
  return selection;
}

std::optional<LinearFloat8Section> float8_options(const JobConfig& config) {
  const std::vector<std::string>& converters = config.model.converters;
  const bool is_used = std::find(converters.begin(), converters.end(), "quantize.linear.float8") != converters.end();
  return is_used ? std::optional(config.quantize.linear.float8) : std::nullopt;
}

DegreeOption degree_option(MeshAxis axis) {
  using S = ParallelismSection;
  switch (axis) {
    case MeshAxis::pp:
      return {"parallelism.pipeline_parallel_degree", &S::pipeline_parallel_degree};
    case MeshAxis::dp_replicate:
      return {"parallelism.data_parallel_replicate_degree", &S::data_parallel_replicate_degree};
    case MeshAxis::dp_shard:
      return {"parallelism.data_parallel_shard_degree", &S::data_parallel_shard_degree};
    case MeshAxis::cp:
      return {"parallelism.context_parallel_degree", &S::context_parallel_degree};
    case MeshAxis::tp:
      return {"parallelism.tensor_parallel_degree", &S::tensor_parallel_degree};
  }
  TITAN_CHECK(false && "an axis", static_cast<int>(axis));
}

DeviceMesh make_mesh(const JobConfig& config, int64_t world) {
  const ParallelismSection& degrees = config.parallelism;
  return DeviceMesh(
      {degrees.pipeline_parallel_degree, degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree,
       degrees.context_parallel_degree, degrees.tensor_parallel_degree},
      world);
}

SequenceShare make_sequence_share(const JobConfig& config, const MeshPlace& place) {
  return {{place.mesh.size(MeshAxis::cp), config.parallelism.context_parallel_load_balancer},
          place.coordinate(MeshAxis::cp)};
}

PlanRequest make_plan_request(const JobConfig& config, const MeshPlace& place, bool on_gpu) {
  PlanRequest request(config);
  request.updates = update_descriptions(config.optimizer);
  request.update_of = [choice = update_choice(config.optimizer)](
                          const UnitDescription& unit, const ParameterSpec& spec) { return choice(unit.role, spec); };
  // What knows the memory chooses (choose_loss_chunks).
  if (request.training.loss_chunks == 0) request.training.loss_chunks = kUsualLossChunks;
  request.float8 = float8_options(config);
  request.recompute = make_recompute_selection(config);
  request.place = place;
  request.samples = config.training.local_batch_size;
  request.sequence_length = config.training.seq_len;
  request.accumulation = accumulation_steps(config, place);
  request.offload_activations = config.activation_checkpoint.offload && config.activation_checkpoint.mode != "none";
  request.on_gpu = on_gpu;
  request.fused_kernels = on_gpu && compiles(config, "model");
  request.fused_loss = on_gpu && compiles(config, "loss");
  request.cuda_graphs = on_gpu && compiles(config, "model") && config.compile.cuda_graphs;
  return request;
}

int64_t accumulation_steps(const JobConfig& config, const MeshPlace& place) {
  const int64_t global = config.training.global_batch_size;
  if (global <= 0) return 1;
  const int64_t at_once = config.training.local_batch_size * place.mesh.data_parallel_degree();
  if (global % at_once != 0) {
    throw Error(ExitCode::bad_config,
                fmt::format("training.global_batch_size = {} is not a multiple of training.local_batch_size = {} on {} "
                            "data-parallel ranks; use a multiple of {}, or -1",
                            global, config.training.local_batch_size, place.mesh.data_parallel_degree(), at_once));
  }
  return global / at_once;
}

DatasetOptions make_training_dataset(const JobConfig& config) {
  return dataset_options(config, config.training.dataset, config.training.dataset_path);
}

bool splits_by_rank(const JobConfig& config, const MeshPlace& place) {
  return config.data.split == "upstream" && place.mesh.data_parallel_degree() > 1;
}

ChatTemplateOptions make_chat_template(const JobConfig& config) {
  return {config.data.chat_template, tokenizer_location(config), config.data.chat, config.data.chat_loss == "all"};
}

ChunkPacking make_packing(const JobConfig& config, const std::string& dataset) {
  if (dataset == "chat") return ChunkPacking::conversations;
  return config.data.packing == "upstream" ? ChunkPacking::upstream : ChunkPacking::lossless;
}

BatchOptions make_batch_options(const JobConfig& config, bool block_causal) {
  BatchOptions options;
  options.chunks.dataset = config.training.dataset;
  options.chunks.packing = make_packing(config, config.training.dataset);
  options.chunks.drops_long = config.data.long_conversations == "drop";
  options.rows.restart_positions = block_causal;
  options.rows.labels_end_with_document = config.data.packing == "document";
  options.queue_depth = config.data.prefetch;
  options.timeout = std::chrono::seconds(config.data.timeout);
  return options;
}

DatasetOptions make_training_part(const JobConfig& config, const MeshPlace& place) {
  DatasetOptions dataset = make_training_dataset(config);
  if (config.data.shuffle) dataset.shuffle_seed = static_cast<uint64_t>(config.data.shuffle_seed);
  if (splits_by_rank(config, place)) {
    dataset.split_ranks = place.mesh.data_parallel_degree();
    dataset.split_rank = place.mesh.data_parallel_rank(place.rank);
  }
  return dataset;
}

std::vector<DatasetOptions> make_training_sources(const JobConfig& config, const MeshPlace& place) {
  const DatasetOptions whole = make_training_part(config, place);
  if (config.training.dataset != "mixture") return {whole};
  std::vector<DatasetOptions> sources;
  for (const MixtureSource& source : config.data.mixture) {
    DatasetOptions& dataset = sources.emplace_back(whole);
    dataset.dataset = source.dataset;
    dataset.path = source.path;
    if (!source.text_field.empty()) dataset.text_field = source.text_field;
  }
  return sources;
}

std::string foreign_position_obstacle(const JobConfig& config, const MeshPlace& place, int64_t saved_ranks) {
  const int64_t ranks = place.mesh.data_parallel_degree();
  if (saved_ranks != ranks) {
    return fmt::format("{} data-parallel ranks had read the data, and this run has {}", saved_ranks, ranks);
  }
  if (const std::string& dataset = config.training.dataset; dataset == "mixture" || dataset == "chat") {
    return fmt::format("it counts documents of one corpus of text, and training.dataset is \"{}\"", dataset);
  }
  if (ranks > 1 && !splits_by_rank(config, place)) {
    return "each rank had read a part of its own; data.split = \"upstream\" resumes that";
  }
  if (config.data.shuffle) return "data.shuffle reads the documents in another order";
  if (config.data.order != "documents") return fmt::format("data.order is \"{}\"", config.data.order);
  if (config.data.packing != "upstream") {
    return fmt::format("data.packing = \"{}\" cuts sequences at other places", config.data.packing);
  }
  return {};
}

DatasetOptions make_validation_dataset(const JobConfig& config) {
  return dataset_options(config, config.validation.dataset, config.validation.dataset_path);
}

BatchPlan make_batch_plan(const JobConfig& config, const MeshPlace& place) {
  return {
      config.training.seq_len,           config.training.local_batch_size,          accumulation_steps(config, place),
      place.mesh.data_parallel_degree(), place.mesh.data_parallel_rank(place.rank), splits_by_rank(config, place)};
}

BatchPlan make_validation_plan(const JobConfig& config, const MeshPlace& place) {
  return {config.validation.seq_len, config.validation.local_batch_size, 1, place.mesh.data_parallel_degree(),
          place.mesh.data_parallel_rank(place.rank)};
}

}  // namespace titan
