#include "titan/parallel/residency.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"

namespace titan {

at::ScalarType scalar_type(ElementType type) { return type == ElementType::float32 ? at::kFloat : at::kBFloat16; }

void reduce_copies(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters, Communicator& communicator) {
  std::vector<at::Tensor> shards;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (plan.parameters[i].copied_over_tensor) shards.push_back(parameters[i]->gradient_shard);
  }
  communicator.all_reduce(std::move(shards))->wait();
}

void place_parameters(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters,
                      const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& sends) {
  TITAN_CHECK(parameters.size() == plan.parameters.size(), plan.name, parameters.size(), plan.parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterPlan& planned = plan.parameters[i];
    parameters[i]->place(planned.layout, planned.shard, planned.unsharded, planned.speaks);
    parameters[i]->master = masters[i];
    parameters[i]->send = sends.empty() ? masters[i] : sends[i];
    parameters[i]->set_in_float8(planned.in_float8);
  }
}

void keep_scales(const std::vector<Parameter*>& parameters, Float8Scales scales, Float8Scales& kept) {
  if (kept.block.defined()) {
    kept.block.copy_(scales.block);
    return;
  }
  kept = std::move(scales);
  int64_t next = 0;
  for (Parameter* parameter : parameters) {
    if (parameter->in_float8()) parameter->float8_scale = kept[next++];
  }
}

void scale_weights(const WeightGroupPlan& plan, const std::vector<Parameter*>& parameters, const Float8Casts& casts,
                   Communicator* tensor, Float8Scales& kept) {
  if (plan.scaled_weights() == 0) return;
  std::vector<at::Tensor> weights;
  for (const Parameter* parameter : parameters) {
    if (parameter->in_float8()) weights.push_back(parameter->weight());
  }
  const at::Tensor largest = casts.largest_magnitudes(weights, {});
  if (tensor) tensor->all_reduce({largest}, Reduction::max)->wait();
  keep_scales(parameters, casts.scales(largest.unbind(), Float8Format::e4m3, /*power_of_two=*/false), kept);
}

void reduce_twins(const std::vector<Parameter*>& parameters, Communicator& communicator) {
  std::vector<at::Tensor> shards;
  for (const Parameter* parameter : parameters) shards.push_back(parameter->gradient_shard);
  communicator.all_reduce(std::move(shards))->wait();
}

ResidentWeights::ResidentWeights(const WeightGroupPlan& plan, std::vector<Parameter*> parameters,
                                 const PlanRequest& request, const at::Device& device, bool transient_gradients,
                                 GroupCommunicators communicators, Float8Casts casts)
    : plan_(plan),
      parameters_(std::move(parameters)),
      communicators_(std::move(communicators)),
      casts_(std::move(casts)),
      transient_gradients_(transient_gradients) {
  const at::TensorOptions options(device);
  masters_ = at::empty({plan.numel}, options.dtype(scalar_type(request.master)));
  if (plan.compute != request.master) {
    copies_ = at::empty({plan.numel}, options.dtype(scalar_type(plan.compute)));
  }
  place_parameters(plan_, parameters_, cut(masters_), copies_.defined() ? cut(copies_) : std::vector<at::Tensor>());
}

std::vector<at::Tensor> ResidentWeights::cut(const at::Tensor& block) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const ParameterPlan& parameter : plan_.parameters) {
    const int64_t numel = parameter.unsharded.numel();
    views.push_back(block.narrow(0, offset, numel).view(parameter.unsharded.extent));
    offset += numel;
  }
  return views;
}

void ResidentWeights::refresh() {
  if (!std::exchange(copied_, true)) {
    if (copies_.defined()) copies_.copy_(masters_);
    for (Parameter* parameter : parameters_) parameter->set_weight(parameter->send);
  }
  scale_weights(plan_, parameters_, casts_, communicators_.tensor.get(), scales_);
}

void ResidentWeights::weights_changed() {
  copied_ = copied_ && std::all_of(parameters_.begin(), parameters_.end(),
                                   [](const Parameter* parameter) { return parameter->send_written; });
  for (Parameter* parameter : parameters_) parameter->send_written = false;
}

void ResidentWeights::open_gradient() {
  if (!gradients_.defined()) gradients_ = at::empty({masters_.numel()}, masters_.options().dtype(at::kFloat));
  std::vector<at::Tensor> views = cut(gradients_);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->set_gradient(views[i]);
}

void ResidentWeights::close_gradient() {
  for (Parameter* parameter : parameters_) {
    if (!parameter->gradient_written()) parameter->gradient().zero_();
    parameter->gradient_shard = parameter->gradient();
  }
}

void ResidentWeights::all_reduce() {
  TITAN_CHECK(communicators_.replicate, plan_.name);
  message_ = gradients_.to(scalar_type(plan_.reduce));
  reduction_ = communicators_.replicate->all_reduce({message_});
}

void ResidentWeights::wait_reduce() {
  reduction_->wait();
  reduction_.reset();
  if (plan_.narrows_gradient()) gradients_.copy_(message_);
  message_.reset();
}

void ResidentWeights::reduce_partial() { reduce_copies(plan_, parameters_, *communicators_.tensor); }

void ResidentWeights::add_tied() { reduce_twins(parameters_, *communicators_.twins); }

void ResidentWeights::zero_gradient() {
  for (Parameter* parameter : parameters_) parameter->gradient_shard.reset();
  if (!transient_gradients_) return;
  for (Parameter* parameter : parameters_) parameter->set_gradient({});
  gradients_.reset();
}

}  // namespace titan
