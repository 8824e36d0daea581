#include "titan/parallel/weight_store.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "titan/base/error.h"

namespace titan {
namespace {

at::Tensor as_type(const at::Tensor& bytes, int64_t offset, int64_t numel, at::ScalarType type) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, offset * size, numel * size).view(type);
}

bool gathered_in_float8(const WeightGroupPlan& plan, size_t index) {
  return plan.gathers_float8 && plan.parameters[index].in_float8;
}

std::vector<size_t> member_indices(const WeightGroupPlan& plan) {
  std::vector<size_t> indices(plan.parameters.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return indices;
}

std::vector<size_t> trained_indices(const WeightGroupPlan& plan) {
  std::vector<size_t> indices = member_indices(plan);
  std::erase_if(indices, [&](size_t i) { return !plan.parameters[i].spec.trainable; });
  return indices;
}

/// One view into `memory` per parameter of `indices`, adjacent: of its `box` in `type`, by default the dtype in which
/// the parameter is gathered.
std::vector<at::Tensor> views_of(const std::vector<size_t>& indices, const at::Tensor& memory,
                                 const WeightGroupPlan& plan, Box ParameterPlan::*box,
                                 std::optional<at::ScalarType> type) {
  const at::Tensor bytes = memory.view(at::kByte);
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const size_t i : indices) {
    const Box& part = plan.parameters[i].*box;
    const at::ScalarType gathered =
        gathered_in_float8(plan, i) ? scalar_type(Float8Format::e4m3) : scalar_type(plan.compute);
    const at::ScalarType as = type.value_or(gathered);
    const int64_t size = part.numel() * static_cast<int64_t>(c10::elementSize(as));
    views.push_back(bytes.narrow(0, offset, size).view(as).view(part.extent));
    offset += size;
  }
  return views;
}

/// The same of all parameters.
std::vector<at::Tensor> views_in(const at::Tensor& memory, const WeightGroupPlan& plan, Box ParameterPlan::*box,
                                 std::optional<at::ScalarType> type = std::nullopt) {
  return views_of(member_indices(plan), memory, plan, box, type);
}

/// Uninitialised tensor like `like`, with `rows` rows.
at::Tensor with_rows(MemoryArena& arena, const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = rows;
  return arena.allocate(c10::multiply_integers(shape), like.scalar_type()).view(shape);
}

/// Copies `rows` [n, …] to `chunk` and zeroes the rows below; both may be the same.
void pad(const at::Tensor& chunk, const at::Tensor& rows) {
  if (chunk.is_same(rows)) return;
  const int64_t given = rows.size(0);
  chunk.narrow(0, 0, given).copy_(rows);
  chunk.narrow(0, given, chunk.size(0) - given).zero_();
}

/// `rows` itself if it has `count` rows, else an uninitialised tensor with that many.
at::Tensor room_for(MemoryArena& arena, const at::Tensor& rows, int64_t count) {
  return rows.size(0) == count ? rows : with_rows(arena, rows, count);
}

}  // namespace

at::ScalarType scalar_type(ElementType type) { return type == ElementType::float32 ? at::kFloat : at::kBFloat16; }

void WeightStore::Transfer::finish() {
  if (!started) return;
  started = false;
  copy.block_stream();
  if (pending) pending->wait();
  pending.reset();
  for (auto& [target, source] : copies) target.copy_(source);
  copies.clear();
  padded_inputs.clear();
}

WeightStore::WeightStore(const WeightGroupPlan& plan, std::vector<Parameter*> parameters, const PlanRequest& request,
                         std::shared_ptr<HostOffload> offload, std::shared_ptr<SlotPool> slots,
                         const MeshCommunicators& communicators, Float8Casts casts)
    : plan_(plan),
      parameters_(std::move(parameters)),
      trained_(trained_indices(plan)),
      trained_numel_(plan.trained_numel()),
      trained_shard_numel_(plan.trained_shard_numel()),
      shards_(plan.axes.shards),
      transient_gradients_(!slots && request.optimizer.early_step_in_backward),
      offload_(std::move(offload)),
      slots_(std::move(slots)),
      gathering_(communicators.for_weights(plan.axes.gather)),
      scattering_(communicators.for_weights(plan.axes.scatter)),
      replicating_(communicators.for_weights(plan.axes.replicate)),
      tensor_(communicators.tensor),
      tied_(communicators.tied),
      casts_(std::move(casts)) {
  TITAN_CHECK(shards_ == 1 || (slots_ && gathering_ && scattering_), plan_.name, shards_);
  TITAN_CHECK(slots_ || !offload_->enabled(), plan_.name);
  TITAN_CHECK(parameters_.size() == plan_.parameters.size(), plan_.name, parameters_.size(), plan_.parameters.size());
  const bool pinned = offload_->pins();
  masters_ = offload_->host().allocate(plan_.shard_numel, scalar_type(request.training.dtype), pinned);
  const std::vector<at::Tensor> masters =
      views_in(masters_, plan_, &ParameterPlan::shard, scalar_type(request.training.dtype));
  std::vector<at::Tensor> copies = masters;
  if (plan_.gathers_float8 || plan_.compute != request.training.dtype) {
    copies_ = offload_->host().allocate(plan_.gathered_shard_bytes(), at::kByte, pinned);
    copies = views_in(copies_, plan_, &ParameterPlan::shard);
  }
  const bool is_summed = slots_ || replicating_ || tensor_ || tied_;
  TITAN_CHECK((!is_summed || plan_.gradient == ElementType::float32) && "a gradient in bf16 is of one rank",
              plan_.name);
  if (slots_ && is_trained()) gradient_shards_ = offload_->host().allocate(trained_shard_numel_, at::kFloat, pinned);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterPlan& planned = plan_.parameters[i];
    Parameter& parameter = *parameters_[i];
    parameter.place(planned.layout, planned.shard, planned.unsharded, planned.owns_shard);
    if (!planned.spec.trainable) parameter.freeze();
    parameter.master = masters[i];
    parameter.compute_copy = copies[i];
    if (gathered_in_float8(plan_, i)) parameter.float8_copy = std::exchange(parameter.compute_copy, masters[i]);
    parameter.set_in_float8(planned.in_float8);
  }
  // Shards that are gathered in the compute dtype send no amaxes: scale() reads the gathered weight.
  if (plan_.scaled_weights() == 0 || (slots_ && !plan_.gathers_float8)) return;
  amaxes_ = at::zeros({plan_.scaled_weights()}, masters_.options().dtype(at::kFloat));
  int64_t next = 0;
  for (Parameter* parameter : parameters_) {
    if (parameter->in_float8()) parameter->amax = amaxes_[next++];
  }
}

void WeightStore::refresh() {
  if (!std::exchange(copied_, true)) {
    if (plan_.gathers_float8 && !scaled_) scale_shards({this});
    if (copies_.defined() && !plan_.gathers_float8) copies_.view(scalar_type(plan_.compute)).copy_(masters_);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = *parameters_[i];
      if (gathered_in_float8(plan_, i)) {
        const at::Tensor scale = parameter.float8_scale.value.to(parameter.master.device());
        parameter.float8_copy.copy_(casts_.cast(parameter.master, scale, Float8Format::e4m3, Float8Sides::data).data);
      } else if (plan_.gathers_float8) {
        parameter.compute_copy.copy_(parameter.master);
      }
      if (!slots_) parameter.set_weight(parameter.compute_copy);
    }
  }
  if (!slots_) scale();
}

void WeightStore::scale_shards(const std::vector<WeightStore*>& stores) {
  // By communicator; the map's order is the same on all ranks, which must call collectives in one order.
  std::map<std::string, std::vector<WeightStore*>> alike;
  for (WeightStore* store : stores) alike[store->plan_.axes.gather].push_back(store);
  for (const auto& [communicator, members] : alike) scale_shards_alike(members);
}

void WeightStore::scale_shards_alike(const std::vector<WeightStore*>& stores) {
  std::vector<std::pair<WeightStore*, int64_t>> owners;
  std::vector<at::Tensor> amaxes;
  for (WeightStore* store : stores) {
    std::vector<at::Tensor> shards;
    for (size_t i = 0; i < store->parameters_.size(); ++i) {
      if (gathered_in_float8(store->plan_, i)) shards.push_back(store->parameters_[i]->master);
    }
    if (shards.empty()) continue;
    owners.emplace_back(store, std::ssize(shards));
    amaxes.push_back(store->amaxes_of(shards).to(store->offload_->device().device()));
  }
  if (owners.empty()) return;
  const at::Tensor largest = at::cat(amaxes);
  for (Communicator* communicator : {owners[0].first->gathering_.get(), owners[0].first->tensor_.get()}) {
    if (communicator) communicator->all_reduce({largest}, Reduction::max)->wait();
  }
  int64_t first = 0;
  for (const auto& [store, count] : owners) {
    store->set_amaxes(largest.narrow(0, first, count));
    first += count;
  }
}

at::Tensor WeightStore::amaxes_of(const std::vector<at::Tensor>& weights) {
  if (!amaxes_.defined()) return casts_.amaxes(weights, {});
  // In place: a step that is skipped leaves the amaxes in these slots, and only the device knows that it was.
  if (!std::exchange(amaxes_known_, true)) amaxes_.copy_(casts_.amaxes(weights, {}));
  return amaxes_;
}

void WeightStore::set_amaxes(const at::Tensor& largest) {
  scaled_ = true;
  Float8Scales scales = casts_.scales(largest.unbind(), Float8Format::e4m3, /*power_of_two=*/false);
  if (scales_.block.defined()) {
    scales_.block.copy_(scales.block);  // in place: recorded graphs read these addresses
    return;
  }
  scales_ = std::move(scales);
  int64_t next = 0;
  for (Parameter* parameter : parameters_) {
    if (parameter->in_float8()) parameter->float8_scale = scales_[next++];
  }
}

void WeightStore::weights_changed() {
  copied_ = copied_ && is_trained() &&  // whoever changes a frozen group does not write its copies
            std::all_of(parameters_.begin(), parameters_.end(),
                        [](const Parameter* parameter) { return parameter->compute_copy_written; });
  scaled_ = false;
  amaxes_known_ = amaxes_known_ && is_trained() &&
                  std::all_of(parameters_.begin(), parameters_.end(), [](const Parameter* parameter) {
                    return parameter->amax_written || !parameter->in_float8();
                  });
  for (Parameter* parameter : parameters_) parameter->compute_copy_written = parameter->amax_written = false;
}

std::vector<const Parameter*> WeightStore::changed_copies() const {
  std::vector<const Parameter*> changed;
  if (!copied_ || !copies_.defined()) return changed;
  // Compared as bytes: a NaN differs from itself.
  const auto differ = [](const at::Tensor& copy, const at::Tensor& made) {
    return !at::equal(copy.view({-1}).view(at::kByte), made.contiguous().view({-1}).view(at::kByte));
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    if (gathered_in_float8(plan_, i)) {
      const at::Tensor scale = parameter.float8_scale.value.to(parameter.master.device());
      const at::Tensor made = casts_.cast(parameter.master, scale, Float8Format::e4m3, Float8Sides::data).data;
      if (differ(parameter.float8_copy, made)) changed.push_back(&parameter);
    } else if (differ(parameter.compute_copy, parameter.master.to(parameter.compute_copy.scalar_type()))) {
      changed.push_back(&parameter);
    }
  }
  return changed;
}

void WeightStore::unshard() {
  Slot& slot = slots_->weights.at(plan_.weight_slot);
  TITAN_CHECK(!slot.in_use && "a slot is free before another group is gathered into it", plan_.name);
  slot.holder = this;
  const at::Tensor host = copies_.defined() ? copies_ : masters_.view(at::kByte);
  gather_.started = true;
  if (shards_ == 1) {  // CPU offload without FSDP: the shard is the weight
    gather_.copy = offload_->to_device(slot.memory.narrow(0, 0, host.numel()), host);
    return;
  }
  const at::Tensor shards = offload_->enabled() ? slot.memory.narrow(0, plan_.gathered_bytes(), host.numel()) : host;
  std::vector<at::Tensor> rows = views_in(shards, plan_, &ParameterPlan::shard);
  std::vector<at::Tensor> outputs = views_in(slot.memory, plan_, &ParameterPlan::unsharded);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (gathered_in_float8(plan_, i)) rows[i] = rows[i].view(at::kByte), outputs[i] = outputs[i].view(at::kByte);
  }
  // Allocated on the compute stream, which waits for the gather.
  std::vector<at::Tensor> inputs = rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ParameterPlan& parameter = plan_.parameters[i];
    if (parameter.even(shards_)) continue;
    inputs[i] = room_for(offload_->device(), rows[i], parameter.chunk_rows);
    gather_.padded_inputs.push_back(inputs[i]);
    const at::Tensor weight = outputs[i];
    outputs[i] = with_rows(offload_->device(), weight, parameter.chunk_rows * shards_);
    gather_.copies.emplace_back(weight, outputs[i].narrow(0, 0, weight.size(0)));
  }
  const auto gather = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) pad(inputs[i], rows[i]);
    // One call takes tensors of one dtype: mixed dtypes are gathered as bytes.
    for (size_t i = 0; plan_.gathers_float8 && i < inputs.size(); ++i) {
      inputs[i] = inputs[i].view({-1}).view(at::kByte);
      outputs[i] = outputs[i].view({-1}).view(at::kByte);
    }
    gather_.pending = gathering_->all_gather(std::move(outputs), std::move(inputs));
  };
  if (!offload_->enabled()) return gather();
  gather_.copy = offload_->to_device(shards, host, gather);
}

void WeightStore::wait_unshard() {
  gather_.finish();
  Slot& slot = slots_->weights.at(plan_.weight_slot);
  TITAN_CHECK(slot.holder == this && !slot.in_use, plan_.name);
  slot.in_use = true;
  const std::vector<at::Tensor> weights = views_in(slot.memory, plan_, &ParameterPlan::unsharded);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->set_weight(weights[i]);
}

void WeightStore::scale() {
  if (plan_.scaled_weights() == 0) return;
  std::vector<at::Tensor> weights;
  for (const Parameter* parameter : parameters_) {
    if (parameter->in_float8()) weights.push_back(parameter->weight());
  }
  at::Tensor largest = amaxes_of(weights);
  if (tensor_) {
    largest = largest.clone();  // the slots keep this rank's
    tensor_->all_reduce({largest}, Reduction::max)->wait();
  }
  set_amaxes(largest);
}

void WeightStore::reshard() {
  Slot& slot = slots_->weights.at(plan_.weight_slot);
  TITAN_CHECK(slot.holder == this && slot.in_use, plan_.name);
  slot.in_use = false;
  for (Parameter* parameter : parameters_) parameter->set_weight({});
}

void WeightStore::open_gradient() {
  at::Tensor memory;
  if (slots_) {
    Slot& slot = slots_->gradients.at(plan_.gradient_slot);
    TITAN_CHECK(!slot.in_use && "a slot's last gradients are reduced before others are written", plan_.name);
    slot.in_use = true;
    // A copy to the host may still read the sums at the slot's end; gradients that end before them need not wait.
    if (slot.to_host_begin < trained_numel_ * size_of(ElementType::float32)) slot.wait_to_host();
    memory = slot.memory;
  } else {
    if (!gradient_shards_.defined()) {
      gradient_shards_ = offload_->device().allocate(trained_numel_, scalar_type(plan_.gradient));
    }
    memory = gradient_shards_;
  }
  const std::vector<at::Tensor> gradients =
      gradient_views(memory, &ParameterPlan::unsharded, scalar_type(plan_.gradient));
  for (size_t t = 0; t < trained_.size(); ++t) parameters_[trained_[t]]->set_gradient(gradients[t]);
}

std::vector<at::Tensor> WeightStore::gradient_views(const at::Tensor& memory, Box ParameterPlan::*box,
                                                    at::ScalarType type) const {
  return views_of(trained_, memory, plan_, box, type);
}

void WeightStore::set_gradient_shards(const at::Tensor& memory) {
  const std::vector<at::Tensor> shards = gradient_views(memory, &ParameterPlan::shard, scalar_type(plan_.gradient));
  for (size_t t = 0; t < trained_.size(); ++t) parameters_[trained_[t]]->gradient_shard = shards[t];
}

void WeightStore::close_gradient() {
  for (const size_t i : trained_) {
    Parameter& parameter = *parameters_[i];
    // No backward wrote this one, so its memory has what was left there.
    if (!parameter.gradient_written()) parameter.gradient().zero_();
  }
  if (shards_ == 1 && !replicating_) complete_gradients();
}

const at::Tensor& WeightStore::narrowed_gradients() {
  const at::Tensor& wide = slots_->gradients.at(plan_.gradient_slot).memory;
  if (!plan_.narrows_gradient()) return wide;
  const at::Tensor& narrow = slots_->messages.at(plan_.message_slot);
  as_type(narrow, 0, trained_numel_, scalar_type(plan_.reduce)).copy_(as_type(wide, 0, trained_numel_, at::kFloat));
  return narrow;
}

// In a slot, the sums are stored after the unsharded gradients; with one shard they replace them.

at::Tensor WeightStore::reduced_sums() const {
  if (!plan_.narrows_gradient()) return reduced_gradients();
  if (!slots_) return message_;
  const at::Tensor& memory = slots_->messages.at(plan_.message_slot);
  return as_type(memory, shards_ == 1 ? 0 : trained_numel_, trained_shard_numel_, scalar_type(plan_.reduce));
}

at::Tensor WeightStore::reduced_gradients() const {
  if (!offload_->enabled()) return gradient_shards_;
  const at::Tensor& memory = slots_->gradients.at(plan_.gradient_slot).memory;
  return as_type(memory, shards_ == 1 ? 0 : trained_numel_, trained_shard_numel_, at::kFloat);
}

void WeightStore::reduce_scatter() {
  reduction_.started = true;
  const at::Tensor& unsharded = narrowed_gradients();
  slots_->gradients.at(plan_.gradient_slot).wait_to_host();
  const at::ScalarType type = scalar_type(plan_.reduce);
  std::vector<at::Tensor> inputs = gradient_views(unsharded, &ParameterPlan::unsharded, type);
  const std::vector<at::Tensor> shards = gradient_views(reduced_sums(), &ParameterPlan::shard, type);
  std::vector<at::Tensor> outputs = shards;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ParameterPlan& parameter = plan_.parameters[trained_[i]];
    if (parameter.even(shards_)) continue;
    const at::Tensor chunk = room_for(offload_->device(), inputs[i], parameter.chunk_rows * shards_);
    pad(chunk, inputs[i]);
    inputs[i] = chunk;
    reduction_.padded_inputs.push_back(inputs[i]);
    outputs[i] = with_rows(offload_->device(), shards[i], parameter.chunk_rows);
    reduction_.copies.emplace_back(shards[i], outputs[i].narrow(0, 0, shards[i].size(0)));
  }
  reduction_.pending = scattering_->reduce_scatter(std::move(outputs), std::move(inputs));
}

void WeightStore::all_reduce() {
  TITAN_CHECK(replicating_, plan_.name);
  if (!slots_) {
    message_ = gradient_shards_.to(scalar_type(plan_.reduce));
  } else if (shards_ == 1) {
    narrowed_gradients();
  }
  replication_ = replicating_->all_reduce({reduced_sums()});
}

void WeightStore::wait_reduce() {
  if (replication_) {
    replication_->wait();
    replication_.reset();
    return complete_gradients();
  }
  TITAN_CHECK(reduction_.started, plan_.name);
  reduction_.finish();
  // The reduction wrote the sums elsewhere, so another group can use the slot.
  if (!plan_.narrows_gradient() && !offload_->enabled()) free_gradient_slot();
  if (!replicating_) complete_gradients();
}

void WeightStore::complete_gradients() {
  const at::Tensor reduced = reduced_gradients();
  if (plan_.narrows_gradient()) reduced.copy_(reduced_sums());
  message_.reset();
  set_gradient_shards(reduced);
  if (offload_->enabled()) {
    offloading_ = Offloading::complete_on_device;
  } else if (slots_ && plan_.narrows_gradient()) {
    free_gradient_slot();
  }
}

void WeightStore::free_gradient_slot() {
  slots_->gradients.at(plan_.gradient_slot).in_use = false;
  for (Parameter* parameter : parameters_) parameter->set_gradient({});
}

void WeightStore::reduce_partial() {
  std::vector<at::Tensor> shards;
  for (const size_t i : trained_) {
    if (plan_.parameters[i].copied_over_tensor) shards.push_back(parameters_[i]->gradient_shard);
  }
  tensor_->all_reduce(std::move(shards))->wait();
}

void WeightStore::add_tied() {
  std::vector<at::Tensor> shards;
  for (const size_t i : trained_) shards.push_back(parameters_[i]->gradient_shard);
  tied_->all_reduce(std::move(shards))->wait();
}

void WeightStore::to_host() {
  TITAN_CHECK(offloading_ == Offloading::complete_on_device, plan_.name);
  offloading_ = Offloading::copying;
  for (Parameter* parameter : parameters_) parameter->gradient_shard.reset();
  Slot& slot = slots_->gradients.at(plan_.gradient_slot);
  const at::Tensor reduced = reduced_gradients();
  slot.to_host = offload_->to_host(gradient_shards_, reduced);
  slot.to_host_begin = reduced.storage_offset() * size_of(ElementType::float32);
  free_gradient_slot();
}

void WeightStore::end_to_host() {
  if (offloading_ != Offloading::copying) return;
  offloading_ = Offloading::none;
  set_gradient_shards(gradient_shards_);
}

void WeightStore::zero_gradient() {
  TITAN_CHECK(offloading_ == Offloading::none && "the optimizer has read these gradients", plan_.name);
  for (Parameter* parameter : parameters_) parameter->gradient_shard.reset();
  if (!transient_gradients_) return;
  for (Parameter* parameter : parameters_) parameter->set_gradient({});
  gradient_shards_.reset();
}

}  // namespace titan
