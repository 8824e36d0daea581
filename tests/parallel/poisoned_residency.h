// A Residency that trusts nobody: weights live in few slots that hold NaN outside acquire … release, gradients in
// storage that holds NaN until written and is taken away at the reduction; every call is written down.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/parallel/residency.h"

namespace titan {

/// Blocks of memory that weight groups take turns in.
class PoisonedSlots {
 public:
  PoisonedSlots(int64_t slots, int64_t numel) {
    for (int64_t i = 0; i < slots; ++i) free_.push_back(at::full({numel}, NAN));
  }
  at::Tensor take() {
    TITAN_CHECK(!free_.empty() && "no more groups are in use at once than slots were planned");
    at::Tensor slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(at::Tensor slot) {
    slot.fill_(NAN);
    free_.insert(free_.begin(), std::move(slot));  // the slot that rested longest is next: addresses rotate
  }
  size_t free() const { return free_.size(); }

 private:
  std::vector<at::Tensor> free_;
};

class PoisonedResidency : public Residency {
 public:
  PoisonedResidency(const WeightGroupPlan& plan, std::vector<Parameter*> parameters,
                    std::shared_ptr<PoisonedSlots> slots, std::shared_ptr<std::vector<std::string>> log)
      : name_(plan.name), parameters_(std::move(parameters)), slots_(std::move(slots)), log_(std::move(log)) {
    for (Parameter* parameter : parameters_) parameter->master = at::empty(parameter->spec().shape);
  }

  void prefetch(const Use& use) override {
    note("prefetch", use);
    fetch();
  }
  void acquire(const Use& use) override {
    note("acquire", use);
    TITAN_CHECK(!held_, name_);
    held_ = true;
    fetch();
    int64_t offset = 0;
    for (Parameter* parameter : parameters_) {
      const int64_t numel = parameter->spec().numel();
      parameter->set_weight(slot_.narrow(0, offset, numel).view(parameter->spec().shape));
      offset += numel;
    }
  }
  void release(const Use& use) override {
    note("release", use);
    TITAN_CHECK(held_, name_);
    held_ = false;
    for (Parameter* parameter : parameters_) parameter->set_weight({});
    slots_->give_back(slot_);
    slot_.reset();
  }
  void gradient_storage() override {
    if (open_) return;
    log_->push_back("storage " + name_);
    open_ = true;
    for (Parameter* parameter : parameters_) parameter->set_gradient(at::full(parameter->spec().shape, NAN));
  }
  void reduce(bool is_last) override {
    log_->push_back((is_last ? "last reduce " : "reduce ") + name_);
    TITAN_CHECK(open_, name_);
    open_ = false;
    for (Parameter* parameter : parameters_) {
      if (!parameter->gradient_shard.defined()) parameter->gradient_shard = at::zeros(parameter->spec().shape);
      if (parameter->gradient_written()) parameter->gradient_shard.add_(parameter->gradient());
      parameter->set_gradient({});
    }
  }
  void settle() override {}
  void add_twin() override {}
  void finish_step() override {}
  void weights_changed() override {}

 private:
  void note(const char* call, const Use& use) {
    log_->push_back(fmt::format("{} {} for {}{}", call, name_, use.phase == UsePhase::forward ? "F" : "B", use.unit));
  }
  void fetch() {
    if (slot_.defined()) return;
    slot_ = slots_->take();
    int64_t offset = 0;
    for (Parameter* parameter : parameters_) {
      const int64_t numel = parameter->spec().numel();
      slot_.narrow(0, offset, numel).copy_(parameter->master.reshape({-1}));
      offset += numel;
    }
  }

  std::string name_;
  std::vector<Parameter*> parameters_;
  std::shared_ptr<PoisonedSlots> slots_;
  std::shared_ptr<std::vector<std::string>> log_;
  at::Tensor slot_;
  bool held_ = false;
  bool open_ = false;
};

}  // namespace titan
