// The tensors of the family that support/experts.h describes.
#pragma once

#include <ATen/ATen.h>

#include "support/experts.h"
#include "titan/model/llama/llama.h"
#include "titan/ops/linear.h"

namespace titan {

class ExpertUnit : public Unit {
 public:
  ExpertUnit(std::shared_ptr<Unit> inner, Parameter& up, Parameter& down, const ModelStrategies& strategies,
             const std::shared_ptr<const SequenceParallel>& exchange)
      : Unit(inner->name(), with(inner->weights(), {&up, &down})),
        inner_(std::move(inner)),
        up_({&up}, 0, strategies.products, LinearSplit::input, exchange),
        down_({&down}, 1, strategies.products, LinearSplit::output, exchange) {}

  HiddenStates forward(const HiddenStates& input, const BatchContext& batch, UnitContext& context) override {
    const at::Tensor features =
        up_.forward(input[0], context)[0].tanh();  // [tokens of all ranks, features of this one]
    return inner_->forward({input[0] + down_.forward(features, context)[0]}, batch, context);
  }

 private:
  static std::vector<Parameter*> with(std::vector<Parameter*> weights, std::initializer_list<Parameter*> more) {
    weights.insert(weights.end(), more);
    return weights;
  }

  std::shared_ptr<Unit> inner_;
  ParallelLinear up_, down_;
};

class ExpertFamily : public ModelFamily {
 public:
  /// `exchange`: between the ranks of dp_shard; null: there is one.
  ExpertFamily(ModelDescription model, std::shared_ptr<const SequenceParallel> exchange)
      : model_(std::move(model)), exchange_(std::move(exchange)) {}
  std::vector<std::string> names() const override { return {}; }
  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    std::unique_ptr<Model> model = llama_family().build(request, strategies);
    struct Open : Model {
      using Model::add_parameter;
      using Model::chain_;
    };
    std::vector<std::shared_ptr<Unit>>& chain = (*model).*(&Open::chain_);
    const auto add = [&](const ParameterSpec& spec) -> Parameter& { return ((*model).*(&Open::add_parameter))(spec); };
    for (size_t u = 0; u < chain.size(); ++u) {
      if (model_.units[u].role != UnitRole::block) continue;
      const std::vector<ParameterSpec>& specs = model_.units[u].parameters;
      Parameter& up = add(specs[specs.size() - 2]);
      chain[u] = std::make_shared<ExpertUnit>(chain[u], up, add(specs.back()), strategies, exchange_);
    }
    return model;
  }

 private:
  ModelDescription model_;
  std::shared_ptr<const SequenceParallel> exchange_;
};

}  // namespace titan
