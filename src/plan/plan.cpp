#include "titan/plan/plan.h"

#include <algorithm>
#include <set>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

std::optional<size_t> group_with(const Plan& plan, const std::string& parameter) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (const ParameterPlan& member : plan.groups[g].parameters) {
      if (member.spec.name == parameter) return g;
    }
  }
  return std::nullopt;
}

/// The stages of this rank; without a pipeline the whole chain.
std::vector<StageSpan> spans_of(const PlanRequest& request, const ModelDescription& model) {
  return request.pipeline ? request.pipeline->stages : std::vector<StageSpan>{{0, 0, model.units.size()}};
}

/// A group for the copy of a parameter that another rank's stage owns and a unit of this rank also uses.
WeightGroupPlan plan_copy(const ModelDescription& model, const std::string& parameter, const PlanRequest& request) {
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.name != parameter) continue;
      UnitDescription alone;
      alone.name = unit.name + " (copy)";
      alone.role = unit.role;  // by which its update is chosen
      alone.parameters = {spec};
      alone.parameters[0].group = 0;
      alone.groups = {{"", unit.groups[spec.group].sharded_over}};
      WeightGroupPlan group = plan_group(alone, 0, request);
      group.parameters[0].owns_shard = false;
      group.is_tied = group.is_copy = true;
      return group;
    }
  }
  throw InvariantError(fmt::format("internal error: no unit owns {}", parameter));
}

void add_unit(Plan& plan, const ModelDescription& model, size_t index) {
  const UnitDescription& unit = model.units[index];
  UnitPlan planned;
  planned.name = unit.name;
  planned.chain_index = index;
  planned.role = unit.role;
  for (size_t group = 0; group < unit.groups.size(); ++group) {
    WeightGroupPlan own = plan_group(unit, group, plan.request);
    if (own.parameters.empty()) continue;
    planned.groups.push_back(plan.groups.size());
    plan.groups.push_back(std::move(own));
  }
  for (const std::string& parameter : unit.borrowed) {
    std::optional<size_t> owner = group_with(plan, parameter);
    if (!owner) {
      owner = plan.groups.size();
      plan.groups.push_back(plan_copy(model, parameter, plan.request));
    }
    planned.groups.push_back(*owner);
  }
  add_ends(plan, model, index, planned);
  planned.weights_in_backward = unit.role != UnitRole::embedding;
  planned.gradients_in_forward = unit.role == UnitRole::head;
  plan.units.push_back(std::move(planned));
}

/// Marks groups that another rank's stage has a copy of.
void mark_tied(Plan& plan, const ModelDescription& model) {
  for (size_t index = 0; index < model.units.size(); ++index) {
    const bool is_here = std::any_of(plan.units.begin(), plan.units.end(),
                                     [&](const UnitPlan& unit) { return unit.chain_index == index; });
    if (is_here) continue;
    for (const std::string& parameter : model.units[index].borrowed) {
      if (const std::optional<size_t> owner = group_with(plan, parameter)) plan.groups[*owner].is_tied = true;
    }
  }
}

/// Numbers the parameters that updates with statistics step.
void number_parameters(Plan& plan, const ModelDescription& model) {
  for (size_t update = 0; update < plan.request.updates.size(); ++update) {
    if (!plan.request.updates[update].statistics) continue;
    std::map<std::string, size_t> numbers;
    for (const ParameterSpec& spec : stepped_by(update, model, plan.request))
      numbers.emplace(spec.name, numbers.size());
    plan.numbered_parameters = numbers.size();
    for (WeightGroupPlan& group : plan.groups) {
      for (ParameterPlan& parameter : group.parameters) {
        if (const auto found = numbers.find(parameter.spec.name); found != numbers.end()) {
          parameter.number = found->second;
        }
      }
    }
  }
}

void add_units(Plan& plan, const ModelDescription& model) {
  const int64_t tensor_ranks = plan.request.place.mesh.size(MeshAxis::tp);
  add_statistics(plan, model);
  for (const StageSpan& span : spans_of(plan.request, model)) {
    const size_t first = plan.units.size();
    for (size_t index = span.first; index < span.last; ++index) {
      add_unit(plan, model, index);
      const UnitDescription& unit = model.units[index];
      if (unit.policy) plan.units.back().policy = unit.policy(plan.request.recompute, tensor_ranks);
    }
    plan.units[first].is_stages_first = true;
    for (size_t u = first; u < plan.units.size(); ++u) plan.units[u].stage = static_cast<int>(span.number);
    plan.units.back().is_models_last = span.last == model.units.size();
    plan.stages.push_back({span.number, first, plan.units.size()});
  }
  mark_tied(plan, model);
  number_parameters(plan, model);
  // Backward starts at the chain's end: a group's gradient is complete after the backward of its first user.
  for (size_t u = plan.units.size(); u-- > 0;) {
    for (size_t g : plan.units[u].groups) plan.groups[g].reduce_after = u;
  }
}

/// Parameters of units that compute in fp32: of units named in keep_fp32, of units that share a parameter with them,
/// and so on. Covers the whole model, so that it is the same on every rank of a pipeline.
std::set<std::string> wide_parameters(const ModelDescription& model, const std::vector<std::string>& kept) {
  std::set<std::string> wide;
  for (size_t pass = 0; pass < 2; ++pass) {  // twice: a head that borrows an fp32 parameter is fp32 as a whole
    for (const UnitDescription& unit : model.units) {
      std::vector<std::string> used = unit.borrowed;
      for (const ParameterSpec& spec : unit.parameters) used.push_back(spec.name);
      const bool named = std::find(kept.begin(), kept.end(), unit.name) != kept.end();
      if (named || std::any_of(used.begin(), used.end(), [&](const auto& name) { return wide.contains(name); })) {
        wide.insert(used.begin(), used.end());
      }
    }
  }
  return wide;
}

/// A unit named in keep_fp32 computes in fp32, and so does every unit that shares a parameter with it; their gradients
/// are also reduced in fp32.
void choose_dtypes(Plan& plan, const ModelDescription& model) {
  const std::set<std::string> wide = wide_parameters(model, plan.request.training.keep_fp32);
  for (WeightGroupPlan& group : plan.groups) {
    const bool is_wide = wide.contains(group.parameters[0].spec.name);
    group.compute = is_wide ? ElementType::float32 : plan.request.training.mixed_precision_param;
    const bool is_reduced = group.axes.shards > 1 || group.axes.replicas > 1;
    // Rounding makes messages smaller; gradients that are not sent keep their bits.
    group.reduce = is_wide || !is_reduced ? ElementType::float32 : plan.request.training.mixed_precision_reduce;
  }
  for (UnitPlan& unit : plan.units) {
    unit.compute =
        unit.groups.empty() ? plan.request.training.mixed_precision_param : plan.groups[unit.groups[0]].compute;
  }
}

/// A gradient in bf16 is rounded once, so nothing may add to it: no other unit, microbatch or rank.
void choose_gradients(Plan& plan) {
  const PlanRequest& request = plan.request;
  const bool is_alone = request.place.mesh.world() == 1 && !request.groups_of_one && !request.pipeline;
  if (!is_alone || request.accumulation > 1 || request.training.enable_cpu_offload) return;
  std::vector<int64_t> users(plan.groups.size());
  for (const UnitPlan& unit : plan.units) {
    for (const size_t group : unit.groups) ++users[group];
  }
  for (const UnitPlan& unit : plan.units) {
    // The head adds up the gradients of its chunks, the embedding those of equal tokens.
    if (unit.role != UnitRole::block) continue;
    for (const size_t g : unit.groups) {
      WeightGroupPlan& group = plan.groups[g];
      if (users[g] == 1 && group.compute == ElementType::bfloat16) group.gradient = request.training.gradient_dtype;
    }
  }
}

void choose_float8(Plan& plan, const ModelDescription& model) {
  const std::optional<LinearFloat8Section>& float8 = plan.request.float8;
  if (!float8) return;
  plan.float8_layers =
      choose_float8_layers(model, *float8, plan.request.place.mesh.size(MeshAxis::tp), plan.request.training.keep_fp32);
  std::set<std::string> converted;
  for (const LinearChoice& choice : plan.float8_layers) {
    if (choice.converted) converted.insert(choice.layer + ".weight");
  }
  for (WeightGroupPlan& group : plan.groups) {
    bool any = false;
    for (ParameterPlan& parameter : group.parameters) {
      parameter.in_float8 = converted.contains(parameter.spec.name);
      any |= parameter.in_float8;
    }
    group.keeps_scales = any && recipe_of(*float8) == Float8Recipe::tensorwise;
    group.gathers_float8 = group.keeps_scales && float8->enable_fsdp_float8_all_gather && group.gathers;
  }
}

/// What a trace depends on besides the request: blocks with equal keys share a trace.
struct TraceKey {
  UnitRole role;
  RecomputePolicy policy;
  ElementType compute, gradient;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<bool> in_float8, trained;
  std::vector<size_t> updates;
  bool operator==(const TraceKey&) const = default;
};

/// The dtype of the gradients of a unit's own weights.
ElementType gradient_of(const Plan& plan, const UnitPlan& unit) {
  return unit.groups.empty() ? ElementType::float32 : plan.groups[unit.groups[0]].gradient;
}

TraceKey key_of(const Plan& plan, const UnitPlan& unit) {
  TraceKey key{unit.role, unit.policy, unit.compute, gradient_of(plan, unit), {}, {}, {}, {}};
  for (const size_t group : unit.groups) {
    for (const ParameterPlan& parameter : plan.groups[group].parameters) {
      key.shapes.push_back(parameter.spec.shape);
      key.in_float8.push_back(parameter.in_float8);
      key.trained.push_back(parameter.spec.trainable);
      key.updates.push_back(parameter.update);
    }
  }
  return key;
}

void add_activations(Plan& plan, const ModelDescription& model) {
  int64_t most_tokens = plan.request.tokens();
  if (plan.request.validation.enable) most_tokens = std::max(most_tokens, validation_request(plan.request).tokens());
  plan.hidden_rows = plan.request.tokens() / plan.request.place.mesh.size(MeshAxis::tp);
  std::vector<std::pair<TraceKey, const UnitPlan*>> distinct;
  for (UnitPlan& unit : plan.units) {
    plan.hidden_bytes = std::max(plan.hidden_bytes, most_tokens * model.dim * size_of(unit.compute));
    unit.offloaded = plan.request.offload_activations && unit.policy.checkpointed();
    TraceKey key = key_of(plan, unit);
    const auto alike =
        std::find_if(distinct.begin(), distinct.end(), [&](const auto& one) { return one.first == key; });
    if (alike != distinct.end()) {
      const UnitPlan& other = *alike->second;
      unit.trace = other.trace, unit.saved_bytes = other.saved_bytes;
      unit.forward_peak = other.forward_peak, unit.backward_peak = other.backward_peak;
      continue;
    }
    unit.trace = trace_unit(plan, plan.request, unit, model.units[unit.chain_index]);
    unit.saved_bytes = unit.trace->saved_bytes(unit.policy);
    unit.forward_peak = unit.trace->forward_peak(unit.policy);
    unit.backward_peak = unit.trace->backward_peak(unit.policy);
    distinct.emplace_back(std::move(key), &unit);
  }
}

/// The share of all pairs of a local query and a key of any rank that causal attention computes.
double causal_share(const PlanRequest& request) {
  const SequenceSplit split = request.split();
  if (split.ranks == 1 || split.balance == LoadBalance::head_tail) return 0.5;
  const auto ranks = static_cast<double>(split.ranks);
  const auto rank = static_cast<double>(request.place.mesh.coordinate(request.place.rank, MeshAxis::cp));
  return (2 * rank + 1) / (2 * ranks);
}

int64_t added_up(const std::vector<MemoryPurpose>& purposes, bool device_only) {
  int64_t total = 0;
  for (const MemoryPurpose& purpose : purposes) {
    if (!device_only || !purpose.on_host) total += purpose.bytes;
  }
  return total;
}

void check_length(const PlanRequest& request, int64_t length) {
  const SequenceSplit split = request.split();
  if (length % split.chunks() == 0) return;
  throw Error(ExitCode::bad_config,
              fmt::format("a sequence of {} tokens does not divide into {} parts for {} context-parallel ranks; use a "
                          "multiple of {}",
                          length, split.chunks(), split.ranks, split.chunks()));
}

}  // namespace

PlanRequest::PlanRequest() : PlanRequest(default_config()) {}

PlanRequest::PlanRequest(const JobConfig& config)
    : training(config.training),
      parallelism(config.parallelism),
      optimizer(config.optimizer),
      validation(config.validation) {}

size_t update_of(const UnitDescription& unit, const ParameterSpec& spec, const PlanRequest& request) {
  const size_t update = request.update_of ? request.update_of(unit, spec) : 0;
  TITAN_CHECK(update < request.updates.size(), spec.name, update);
  return update;
}

std::vector<ParameterSpec> stepped_by(size_t update, const ModelDescription& model, const PlanRequest& request) {
  std::vector<ParameterSpec> stepped;
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.trainable && update_of(unit, spec, request) == update) stepped.push_back(spec);
    }
  }
  return stepped;
}

WeightGroupPlan plan_group(const UnitDescription& unit, size_t index, const PlanRequest& request) {
  WeightGroupPlan group;
  const std::string& suffix = unit.groups[index].suffix;
  group.name = suffix.empty() ? unit.name : unit.name + "." + suffix;
  group.axes = group_axes(unit, index, request);
  group.gathers = group.axes.shards > 1 || request.training.enable_cpu_offload;
  for (const ParameterSpec& spec : unit.parameters) {
    if (spec.group != index) continue;
    group.parameters.push_back(plan_parameter(spec, group.axes, request));
    group.parameters.back().update = update_of(unit, spec, request);
    group.numel += group.parameters.back().unsharded.numel();
    group.shard_numel += group.parameters.back().shard.numel();
  }
  find_matrices(request, group);
  return group;
}

bool keeps_float8_weights(const PlanRequest& request) {
  const bool wanted = request.float8 && recipe_of(*request.float8) == Float8Recipe::tensorwise &&
                      !request.float8->force_recompute_fp8_weight_in_bwd;
  return wanted && request.shards() == 1 && !request.training.enable_cpu_offload && !request.pipeline &&
         request.place.mesh.size(MeshAxis::tp) == 1;
}

namespace {

/// True if the optimizer's kernels also find the amaxes of the group's float8 weights: of weights that stay on the GPU,
/// where they step the masters that are multiplied, or write bf16 copies of fp32 masters.
bool finds_amaxes(const PlanRequest& request, const WeightGroupPlan& group) {
  if (!request.on_gpu || group.gathers || request.optimizer.implementation != OptimizerImplementation::fused) {
    return false;
  }
  const bool writes = request.training.dtype == ElementType::float32 || group.compute == request.training.dtype;
  return writes && std::none_of(group.parameters.begin(), group.parameters.end(), [&](const ParameterPlan& parameter) {
           return parameter.in_float8 && request.updates[parameter.update].whole_matrices;
         });
}

}  // namespace

std::shared_ptr<const UnitTrace> trace_unit(const Plan& plan, const PlanRequest& request, const UnitPlan& unit,
                                            const UnitDescription& description) {
  TraceShape shape;
  shape.samples = request.samples, shape.length = request.local_length();
  shape.element_size = size_of(unit.compute);
  shape.gradient_size = size_of(gradient_of(plan, unit));
  shape.on_gpu = request.on_gpu;
  shape.fused_kernels = request.on_gpu && request.fused_kernels;
  shape.tensor_ranks = request.place.mesh.size(MeshAxis::tp);
  shape.async_tensor_parallel = request.async_tensor_parallel();
  shape.loss.parallel = !request.parallelism.disable_loss_parallel;
  shape.loss.in_place = request.fused_loss;
  shape.loss.chunks = request.training.loss_chunks;
  shape.context_ranks = request.split().ranks;
  shape.rotates_by_all_gather = request.parallelism.context_parallel_rotate_method == Rotation::all_gather;
  shape.causal_share = causal_share(request);
  if (request.float8) shape.float8 = recipe_of(*request.float8);
  for (const size_t group : unit.groups) {
    for (const ParameterPlan& parameter : plan.groups[group].parameters) {
      if (parameter.in_float8) shape.float8_parameters.push_back(parameter.spec.name);
      if (!parameter.spec.trainable) shape.frozen_parameters.push_back(parameter.spec.name);
    }
    shape.gathers_float8 |= plan.groups[group].gathers_float8;
  }
  shape.keeps_float8_weights = keeps_float8_weights(request);
  shape.reads_weights_for_scales = std::any_of(
      unit.groups.begin(), unit.groups.end(), [&](size_t group) { return !finds_amaxes(request, plan.groups[group]); });
  auto trace = std::make_shared<UnitTrace>(std::move(shape));
  description.trace(*trace);
  check_ends(*trace, unit);
  return trace;
}

int64_t WeightGroupPlan::gathered_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) bytes += parameters[i].unsharded.numel() * gathered_size(i);
  return bytes;
}

int64_t WeightGroupPlan::gathered_shard_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) bytes += parameters[i].shard.numel() * gathered_size(i);
  return bytes;
}

int64_t WeightGroupPlan::scaled_weights() const {
  if (!keeps_scales) return 0;
  return std::count_if(parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter.in_float8; });
}

int64_t WeightGroupPlan::partial_numel() const {
  int64_t numel = 0;
  for (const ParameterPlan& parameter : parameters) {
    if (parameter.spec.trainable && parameter.copied_over_tensor) numel += parameter.shard.numel();
  }
  return numel;
}

bool WeightGroupPlan::is_trained() const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterPlan& parameter) { return parameter.spec.trainable; });
}

int64_t WeightGroupPlan::trained_numel() const {
  int64_t numel = 0;
  for (const ParameterPlan& parameter : parameters) {
    if (parameter.spec.trainable) numel += parameter.unsharded.numel();
  }
  return numel;
}

int64_t WeightGroupPlan::trained_shard_numel() const {
  int64_t numel = 0;
  for (const ParameterPlan& parameter : parameters) {
    if (parameter.spec.trainable) numel += parameter.shard.numel();
  }
  return numel;
}

int64_t Plan::moment_bytes(const ParameterPlan& parameter) const {
  if (!parameter.spec.trainable) return 0;
  const UpdateDescription& update = request.updates[parameter.update];
  return parameter.shard.numel() * std::ssize(update.moments) *
         size_of(update.moment_type.value_or(request.optimizer.state_dtype));
}

int64_t Plan::moment_bytes(const WeightGroupPlan& group) const {
  int64_t bytes = 0;
  for (const ParameterPlan& parameter : group.parameters) bytes += moment_bytes(parameter);
  return bytes;
}

bool Plan::gathers_weights() const {
  return std::any_of(groups.begin(), groups.end(), [](const WeightGroupPlan& group) { return group.gathers; });
}

bool Plan::has_stage(int64_t number) const {
  return std::any_of(stages.begin(), stages.end(), [&](const StagePlan& stage) { return stage.number == number; });
}

bool Plan::records_microbatches() const {
  const bool is_alone = request.place.mesh.world() == 1 && !request.groups_of_one;
  return request.cuda_graphs && is_alone && !gathers_weights() && !why_no_graphs(request);
}

// The graphs of a pass run in the order of recording. No graph may wait for other ranks, and gradients must stay at
// their addresses.
std::optional<std::string> why_no_graphs(const PlanRequest& request) {
  if (request.pipeline) return "the units of a pipeline run in the order of its schedule";
  if (request.place.mesh.size(MeshAxis::tp) > 1) return "tensor-parallel ranks communicate within the blocks";
  if (request.split().ranks > 1) return "context-parallel ranks communicate within the blocks";
  if (request.offload_activations) return "offloaded activations change their addresses";
  if (request.optimizer.early_step_in_backward) return "gradients that are stepped in backward change their addresses";
  return std::nullopt;
}

int64_t Plan::training_bytes(bool device_only) const { return added_up(memory, device_only); }
int64_t Plan::validation_bytes(bool device_only) const { return added_up(validation_memory, device_only); }
int64_t Plan::peer_bytes() const {
  return request.async_tensor_parallel() ? 2 * hidden_bytes : 0;  // one is read while the other is filled
}

int64_t Plan::predicted_bytes(bool device_only) const {
  return std::max(training_bytes(device_only), validation_bytes(device_only));
}

Plan make_plan(const ModelDescription& model, const PlanRequest& request) {
  check_length(request, request.sequence_length);
  if (request.validation.enable) check_length(request, request.validation.seq_len);
  Plan plan(request);
  plan.parameter_count = model.parameter_count();
  plan.flops_per_token = model.flops_per_token(request.sequence_length);
  add_units(plan, model);
  choose_dtypes(plan, model);
  choose_gradients(plan);
  choose_float8(plan, model);
  add_activations(plan, model);
  assign_slots(plan);
  assign_matrices(plan);
  add_traffic(plan, step_programs(plan, settled_state(plan)));
  add_offload_traffic(plan);
  add_memory(plan, model, step_programs(plan, stale_state(plan)));  // the first step gathers the most
  return plan;
}

}  // namespace titan
