#include "titan/parallel/sharded_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

at::Tensor as_type(const at::Tensor& bytes, int64_t offset, int64_t numel, at::ScalarType type) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, offset * size, numel * size).view(type);
}

/// Uninitialised, as `like` but with that many rows.
at::Tensor with_rows(MemoryArena& arena, const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = rows;
  return arena.allocate(c10::multiply_integers(shape), like.scalar_type()).view(shape);
}

/// `chunk` becomes `rows` [n, …] with zero rows below; both may be the same.
void pad(const at::Tensor& chunk, const at::Tensor& rows) {
  if (chunk.is_same(rows)) return;
  const int64_t given = rows.size(0);
  chunk.narrow(0, 0, given).copy_(rows);
  chunk.narrow(0, given, chunk.size(0) - given).zero_();
}

/// Where `rows` [n, …] fit with zero rows below it up to `count`, still to be written; itself when it has that many.
at::Tensor room_for(MemoryArena& arena, const at::Tensor& rows, int64_t count) {
  return rows.size(0) == count ? rows : with_rows(arena, rows, count);
}

int64_t bytes_of(const std::vector<Slot>& slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes += static_cast<int64_t>(slot.memory.nbytes());
  return bytes;
}

}  // namespace

SlotPool::SlotPool(const Plan& plan, MemoryArena& device) {
  for (int64_t bytes : plan.weight_slots) weights_.emplace_back().memory = device.allocate(bytes, at::kByte);
  for (int64_t bytes : plan.gradient_slots) gradients_.emplace_back().memory = device.allocate(bytes, at::kByte);
  for (int64_t bytes : plan.message_slots) messages_.push_back(device.allocate(bytes, at::kByte));
}

int64_t SlotPool::in_use() const {
  return std::count_if(weights_.begin(), weights_.end(), [](const Slot& slot) { return slot.in_use; });
}

int64_t SlotPool::weight_bytes() const { return bytes_of(weights_); }
int64_t SlotPool::gradient_bytes() const { return bytes_of(gradients_); }

void ShardedWeights::Transfer::finish() {
  if (!under_way) return;
  under_way = false;
  crossing.order();
  if (pending) pending->wait();
  pending.reset();
  for (auto& [target, source] : copies) target.copy_(source);
  copies.clear();
  padded_inputs.clear();
}

ShardedWeights::ShardedWeights(const WeightGroupPlan& plan, std::vector<Parameter*> parameters,
                               const PlanRequest& request, std::shared_ptr<SlotPool> slots,
                               std::shared_ptr<HostLink> link, GroupCommunicators communicators, Float8Casts casts)
    : plan_(plan),
      parameters_(std::move(parameters)),
      shards_(request.shards()),
      slots_(std::move(slots)),
      link_(std::move(link)),
      communicators_(std::move(communicators)),
      casts_(std::move(casts)) {
  TITAN_CHECK(shards_ == 1 || (communicators_.gather && communicators_.scatter), plan.name, shards_);
  const bool pinned = link_->crosses() && !link_->device().device().is_cpu();
  MemoryArena& home = link_->home();
  masters_ = home.allocate(plan.shard_numel, scalar_type(request.master), pinned);
  const bool copied = plan.gathers_float8 || plan.compute != request.master;
  if (copied) copies_ = home.allocate(plan.gathered_shard_bytes(), at::kByte, pinned);
  gradient_shards_ = home.allocate(plan.shard_numel, at::kFloat, pinned);
  const std::vector<at::Tensor> masters = shards_of(masters_);
  std::vector<at::Tensor> sends = copied ? gathered_shards_of(copies_) : masters;
  for (size_t i = 0; i < sends.size(); ++i) {
    if (!travels_in_float8(i)) continue;
    parameters_[i]->float8_send = sends[i];
    sends[i] = masters[i];
  }
  place_parameters(plan_, parameters_, masters, sends);
}

ShardedWeights::~ShardedWeights() = default;

std::vector<at::Tensor> ShardedWeights::shards_of(const at::Tensor& block) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const ParameterPlan& parameter : plan_.parameters) {
    const int64_t numel = parameter.shard.numel();
    views.push_back(block.narrow(0, offset, numel).view(parameter.shard.extent));
    offset += numel;
  }
  return views;
}

std::vector<at::Tensor> ShardedWeights::unsharded_in(const at::Tensor& memory, at::ScalarType type) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const ParameterPlan& parameter : plan_.parameters) {
    const int64_t numel = parameter.unsharded.numel();
    views.push_back(as_type(memory, offset, numel, type).view(parameter.unsharded.extent));
    offset += numel;
  }
  return views;
}

at::ScalarType ShardedWeights::gathered_type(size_t index) const {
  return travels_in_float8(index) ? scalar_type(Float8Format::e4m3) : scalar_type(plan_.compute);
}

std::vector<at::Tensor> ShardedWeights::weights_in(const at::Tensor& memory) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    const Box& box = plan_.parameters[i].unsharded;
    const int64_t bytes = box.numel() * plan_.gathered_size(i);
    views.push_back(memory.narrow(0, offset, bytes).view(gathered_type(i)).view(box.extent));
    offset += bytes;
  }
  return views;
}

std::vector<at::Tensor> ShardedWeights::gathered_shards_of(const at::Tensor& bytes) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    const Box& box = plan_.parameters[i].shard;
    const int64_t size = box.numel() * plan_.gathered_size(i);
    views.push_back(bytes.narrow(0, offset, size).view(gathered_type(i)).view(box.extent));
    offset += size;
  }
  return views;
}

at::Tensor ShardedWeights::staged_in(const at::Tensor& memory, at::ScalarType type) const {
  return as_type(memory, plan_.numel, plan_.shard_numel, type);
}

void ShardedWeights::refresh() {
  if (std::exchange(copied_, true)) return;
  if (plan_.gathers_float8) refresh_scales();
  if (!copies_.defined()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    if (!travels_in_float8(i)) {
      parameter.send.copy_(parameter.master);
      continue;
    }
    const at::Tensor scale = parameter.float8_scale.value.to(parameter.master.device());
    parameter.float8_send.copy_(casts_.cast(parameter.master, scale, Float8Format::e4m3, Float8Sides::data).data);
  }
}

void ShardedWeights::refresh_scales() {
  if (scaled_) return;
  at::Tensor largest = largest_magnitudes();
  if (communicators_.gather) communicators_.gather->all_reduce({largest}, Reduction::max)->wait();
  if (communicators_.tensor) communicators_.tensor->all_reduce({largest}, Reduction::max)->wait();
  set_largest_magnitudes(largest);
}

at::Tensor ShardedWeights::largest_magnitudes() {
  std::vector<at::Tensor> shards;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (travels_in_float8(i)) shards.push_back(parameters_[i]->master);
  }
  return shards.empty() ? at::Tensor() : casts_.largest_magnitudes(shards, {}).to(link_->device().device());
}

void ShardedWeights::set_largest_magnitudes(const at::Tensor& largest) {
  keep_scales(parameters_, casts_.scales(largest.unbind(), Float8Format::e4m3, /*power_of_two=*/false), scales_);
  scaled_ = true;
}

void ShardedWeights::weights_changed() {
  copied_ = copied_ && std::all_of(parameters_.begin(), parameters_.end(),
                                   [](const Parameter* parameter) { return parameter->send_written; });
  scaled_ = false;
  for (Parameter* parameter : parameters_) parameter->send_written = false;
}

void ShardedWeights::unshard() {
  Slot& slot = slots_->weights(plan_.weight_slot);
  TITAN_CHECK(!slot.in_use && "a slot is free before another group's weights arrive in it", plan_.name);
  slot.holder = this;
  start_gather(slot.memory);
}

void ShardedWeights::start_gather(const at::Tensor& memory) {
  const at::Tensor home = copies_.defined() ? copies_ : masters_.view(at::kByte);
  gather_.under_way = true;
  if (shards_ == 1) {  // offload alone: the shard is the weight, and comes while the unit before this one runs
    gather_.crossing = link_->start_to_device(memory.narrow(0, 0, home.numel()), home);
    return;
  }
  const at::Tensor shards = link_->crosses() ? memory.narrow(0, plan_.gathered_bytes(), home.numel()) : home;
  std::vector<at::Tensor> rows = gathered_shards_of(shards);
  std::vector<at::Tensor> outputs = weights_in(memory);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (travels_in_float8(i)) rows[i] = rows[i].view(at::kByte), outputs[i] = outputs[i].view(at::kByte);
  }
  // Memory of the stream that computes, which waits for the gather, whichever stream fills it.
  std::vector<at::Tensor> inputs = rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ParameterPlan& parameter = plan_.parameters[i];
    if (parameter.even(shards_)) continue;
    inputs[i] = room_for(link_->device(), rows[i], parameter.chunk_rows);
    gather_.padded_inputs.push_back(inputs[i]);
    const at::Tensor weight = outputs[i];
    outputs[i] = with_rows(link_->device(), weight, parameter.chunk_rows * shards_);
    gather_.copies.emplace_back(weight, outputs[i].narrow(0, 0, weight.size(0)));
  }
  const auto gather = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) pad(inputs[i], rows[i]);
    // One call takes tensors of one dtype: what is mixed travels as bytes.
    for (size_t i = 0; plan_.gathers_float8 && i < inputs.size(); ++i) {
      inputs[i] = inputs[i].view({-1}).view(at::kByte);
      outputs[i] = outputs[i].view({-1}).view(at::kByte);
    }
    gather_.pending = communicators_.gather->all_gather(std::move(outputs), std::move(inputs));
  };
  if (!link_->crosses()) return gather();
  gather_.crossing = link_->start_to_device(shards, home, gather);
}

void ShardedWeights::wait_unshard() {
  gather_.finish();
  Slot& slot = slots_->weights(plan_.weight_slot);
  TITAN_CHECK(slot.holder == this && !slot.in_use, plan_.name);
  slot.in_use = true;
  const std::vector<at::Tensor> weights = weights_in(slot.memory);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->set_weight(weights[i]);
}

void ShardedWeights::scale() { scale_weights(plan_, parameters_, casts_, communicators_.tensor.get(), scales_); }

void ShardedWeights::reshard() {
  Slot& slot = slots_->weights(plan_.weight_slot);
  TITAN_CHECK(slot.holder == this && slot.in_use, plan_.name);
  slot.in_use = false;
  for (Parameter* parameter : parameters_) parameter->set_weight({});
}

void ShardedWeights::open_gradient() {
  Slot& slot = slots_->gradients(plan_.gradient_slot);
  TITAN_CHECK(!slot.in_use && "a slot's last gradients are reduced before others are written", plan_.name);
  slot.holder = this;
  slot.in_use = true;
  if (slot.leaving_begin < plan_.numel * size_of(ElementType::float32)) order_leaving(slot);
  const std::vector<at::Tensor> gradients = unsharded_in(slot.memory, at::kFloat);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->set_gradient(gradients[i]);
}

void ShardedWeights::close_gradient() {
  for (Parameter* parameter : parameters_) {
    if (!parameter->gradient_written()) parameter->gradient().zero_();
  }
  if (shards_ == 1 && !communicators_.replicate) complete_gradients();
}

at::Tensor ShardedWeights::reduced_gradients() const {
  if (!link_->crosses()) return gradient_shards_;
  const at::Tensor& memory = slots_->gradients(plan_.gradient_slot).memory;
  return shards_ == 1 ? as_type(memory, 0, plan_.numel, at::kFloat) : staged_in(memory, at::kFloat);
}

at::Tensor ShardedWeights::travelling_gradients() const {
  if (!plan_.narrows_gradient()) return slots_->gradients(plan_.gradient_slot).memory;
  return slots_->messages(plan_.message_slot);
}

at::Tensor ShardedWeights::travelling_sums() const {
  if (!plan_.narrows_gradient()) return reduced_gradients();
  const at::Tensor& memory = slots_->messages(plan_.message_slot);
  const at::ScalarType type = scalar_type(plan_.reduce);
  return shards_ == 1 ? as_type(memory, 0, plan_.numel, type) : staged_in(memory, type);
}

void ShardedWeights::narrow_gradients() {
  if (!plan_.narrows_gradient()) return;
  const at::ScalarType type = scalar_type(plan_.reduce);
  const at::Tensor& wide = slots_->gradients(plan_.gradient_slot).memory;
  as_type(travelling_gradients(), 0, plan_.numel, type).copy_(as_type(wide, 0, plan_.numel, at::kFloat));
}

void ShardedWeights::reduce_scatter() {
  reduction_.under_way = true;
  narrow_gradients();
  order_leaving(slots_->gradients(plan_.gradient_slot));
  std::vector<at::Tensor> inputs = unsharded_in(travelling_gradients(), scalar_type(plan_.reduce));
  const std::vector<at::Tensor> shards = shards_of(travelling_sums());
  std::vector<at::Tensor> outputs = shards;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ParameterPlan& parameter = plan_.parameters[i];
    if (parameter.even(shards_)) continue;
    const at::Tensor chunk = room_for(link_->device(), inputs[i], parameter.chunk_rows * shards_);
    pad(chunk, inputs[i]);
    inputs[i] = chunk;
    reduction_.padded_inputs.push_back(inputs[i]);
    outputs[i] = with_rows(link_->device(), shards[i], parameter.chunk_rows);
    reduction_.copies.emplace_back(shards[i], outputs[i].narrow(0, 0, shards[i].size(0)));
  }
  reduction_.pending = communicators_.scatter->reduce_scatter(std::move(outputs), std::move(inputs));
}

void ShardedWeights::all_reduce() {
  TITAN_CHECK(communicators_.replicate, plan_.name);
  if (shards_ == 1) narrow_gradients();
  replication_ = communicators_.replicate->all_reduce({travelling_sums()});
}

void ShardedWeights::wait_reduce() {
  if (replication_) {
    replication_->wait();
    replication_.reset();
    return complete_gradients();
  }
  TITAN_CHECK(reduction_.under_way, plan_.name);
  reduction_.finish();
  // Sums that are not in the slot any more leave it to others.
  if (!plan_.narrows_gradient() && !link_->crosses()) free_gradient_slot();
  if (!communicators_.replicate) complete_gradients();
}

void ShardedWeights::complete_gradients() {
  const at::Tensor reduced = reduced_gradients();
  if (plan_.narrows_gradient()) reduced.copy_(travelling_sums());
  const std::vector<at::Tensor> shards = shards_of(reduced);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->gradient_shard = shards[i];
  may_leave_ = link_->crosses();
  if (plan_.narrows_gradient() && !may_leave_) free_gradient_slot();
}

void ShardedWeights::free_gradient_slot() {
  slots_->gradients(plan_.gradient_slot).in_use = false;
  for (Parameter* parameter : parameters_) parameter->set_gradient({});
}

void ShardedWeights::reduce_partial() { reduce_copies(plan_, parameters_, *communicators_.tensor); }

void ShardedWeights::order_leaving(Slot& slot) {
  slot.leaving.order();
  slot.leaving = {};
}

void ShardedWeights::to_host() {
  TITAN_CHECK(std::exchange(may_leave_, false), plan_.name);
  on_their_way_ = true;
  for (Parameter* parameter : parameters_) parameter->gradient_shard.reset();
  Slot& slot = slots_->gradients(plan_.gradient_slot);
  const at::Tensor reduced = reduced_gradients();
  slot.leaving = link_->start_to_home(gradient_shards_, reduced);
  slot.leaving_begin = reduced.storage_offset() * size_of(ElementType::float32);
  free_gradient_slot();
}

void ShardedWeights::arrive() {
  if (!std::exchange(on_their_way_, false)) return;
  const std::vector<at::Tensor> home = shards_of(gradient_shards_);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->gradient_shard = home[i];
}

void ShardedWeights::add_tied() { reduce_twins(parameters_, *communicators_.twins); }

void ShardedWeights::zero_gradient() {
  TITAN_CHECK(!may_leave_ && !on_their_way_ && "the optimizer has read these gradients", plan_.name);
  for (Parameter* parameter : parameters_) parameter->gradient_shard.reset();
}

}  // namespace titan
