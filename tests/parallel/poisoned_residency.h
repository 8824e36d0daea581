// A Residency that trusts nobody: slots hold NaN until WAIT_UNSHARD, weights are there between it and RESHARD and at no
// other time, gradients are NaN until written.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/parallel/residency.h"

namespace titan {

/// Memory that weight groups take turns in, by the plan's slots.
using PoisonedSlots = std::vector<at::Tensor>;

class PoisonedResidency : public Residency {
 public:
  PoisonedResidency(const WeightGroupPlan& plan, std::vector<Parameter*> parameters,
                    std::shared_ptr<PoisonedSlots> slots)
      : plan_(plan), parameters_(std::move(parameters)), slots_(std::move(slots)) {
    if (slots_->size() <= plan.weight_slot) slots_->resize(plan.weight_slot + 1);
    for (Parameter* parameter : parameters_) parameter->master = at::empty(parameter->spec().shape);
  }

  void refresh() override {}
  void unshard() override {
    TITAN_CHECK(!held_, plan_.name);
    at::Tensor& slot = (*slots_)[plan_.weight_slot];
    if (!slot.defined()) slot = at::empty({16384});
    slot.fill_(NAN);
    arriving_ = true;
  }
  void wait_unshard() override {
    TITAN_CHECK(!held_, plan_.name);
    held_ = true;
    int64_t offset = 0;
    for (Parameter* parameter : parameters_) {
      const int64_t numel = parameter->spec().numel();
      at::Tensor weight = (*slots_)[plan_.weight_slot].narrow(0, offset, numel).view(parameter->spec().shape);
      if (arriving_) weight.copy_(parameter->master);
      parameter->set_weight(weight);
      offset += numel;
    }
    arriving_ = false;
  }
  void reshard() override {
    TITAN_CHECK(held_, plan_.name);
    held_ = false;
    for (Parameter* parameter : parameters_) parameter->set_weight({});
  }
  void open_gradient() override {
    for (Parameter* parameter : parameters_) parameter->set_gradient(at::full(parameter->spec().shape, NAN));
  }
  void close_gradient() override {
    for (Parameter* parameter : parameters_) {
      TITAN_CHECK(parameter->gradient_written(), plan_.name);
      parameter->gradient_shard = parameter->gradient();
      parameter->set_gradient({});
    }
  }
  void zero_gradient() override {}
  void weights_changed() override {}

 private:
  WeightGroupPlan plan_;
  std::vector<Parameter*> parameters_;
  std::shared_ptr<PoisonedSlots> slots_;
  bool arriving_ = false;
  bool held_ = false;
};

}  // namespace titan
