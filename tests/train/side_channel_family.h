// The tensors of the family that support/side_channel.h describes.
#pragma once

#include <ATen/ATen.h>

#include "support/side_channel.h"
#include "titan/model/llama/llama.h"

namespace titan {

/// Ways in which a unit can break what its description says.
enum class SideFault { none, hands_on_less, narrower, other_dtype, no_statistics, longer_statistic, float_statistic };

inline at::Tensor with_side(const at::Tensor& hidden, const at::Tensor& side) {
  return hidden + at::constant_pad_nd(side, {0, hidden.size(1) - side.size(1)});
}

class SideUnit : public Unit {
 public:
  SideUnit(std::shared_ptr<Unit> inner, UnitRole role, SideFault fault)
      : Unit(inner->name(), inner->weights()), inner_(std::move(inner)), role_(role), fault_(fault) {}

  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override {
    if (role_ == UnitRole::embedding) {
      const at::Tensor hidden = inner_->forward(input, batch, context)[0];
      return {hidden, hidden.narrow(1, 0, kSideWidth).tanh()};
    }
    const at::Tensor x = with_side(input[0], input[1]);
    if (role_ == UnitRole::head) return inner_->forward({x}, batch, context);
    // Of the block's input: a replay does not compute the block's closing sum.
    const at::Tensor side = (input[1] + x.narrow(1, 0, kSideWidth)).tanh();
    const at::Tensor squares = side.to(at::kDouble).square().sum(0);
    const at::Tensor energy =
        batch.loss_scale_at.defined() ? squares * batch.loss_scale_at : squares * batch.loss_scale;
    const at::Tensor rows = at::full({1}, static_cast<double>(side.size(0)), energy.options().requires_grad(false));
    return broken({inner_->forward({x}, batch, context)[0], side, energy, rows});
  }

 private:
  HiddenStates broken(HiddenStates output) const {
    switch (fault_) {
      case SideFault::none:
        break;
      case SideFault::hands_on_less:
        output.erase(output.begin() + 1);
        break;
      case SideFault::narrower:
        output[1] = output[1].narrow(1, 0, kSideWidth - 1);
        break;
      case SideFault::other_dtype:
        output[1] = output[1].to(at::kHalf);
        break;
      case SideFault::no_statistics:
        output.resize(2);
        break;
      case SideFault::longer_statistic:
        output[2] = at::cat({output[2], output[2]});
        break;
      case SideFault::float_statistic:
        output[2] = output[2].to(at::kFloat);
        break;
    }
    return output;
  }

  std::shared_ptr<Unit> inner_;
  UnitRole role_;
  SideFault fault_;
};

class SideChannelFamily : public ModelFamily {
 public:
  explicit SideChannelFamily(SideFault fault = SideFault::none) : fault_(fault) {}
  std::vector<std::string> names() const override { return {}; }
  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    std::unique_ptr<Model> model = llama_family().build(request, strategies);
    struct Open : Model {
      using Model::chain_;
    };
    std::vector<std::shared_ptr<Unit>>& chain = (*model).*(&Open::chain_);
    for (size_t u = 0; u < chain.size(); ++u) {
      const UnitRole role = u == 0 ? UnitRole::embedding : u + 1 == chain.size() ? UnitRole::head : UnitRole::block;
      chain[u] = std::make_shared<SideUnit>(chain[u], role, fault_);
    }
    return model;
  }

 private:
  SideFault fault_;
};

}  // namespace titan
