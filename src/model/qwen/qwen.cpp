#include "titan/model/qwen/qwen.h"

#include "state_dict_adapter.h"
#include "titan/model/llama/llama.h"
#include "titan/ops/bias.h"
#include "titan/ops/norm.h"
#include "titan/plan/qwen.h"

namespace titan {
namespace {

class AddedBiases : public LlamaVariant {
 public:
  void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters, const LlamaArguments&,
             UnitContext& context) const override {
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = add_bias(qkv[i], *parameters[i], static_cast<int>(i), context);
  }
};

class NormalisedHeads : public LlamaVariant {
 public:
  void apply(std::vector<at::Tensor>& qkv, const std::vector<Parameter*>& parameters, const LlamaArguments& a,
             UnitContext& context) const override {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Norm norm(a.norm, parameters[i], a.norm_epsilon, kFirstHeadNorm + static_cast<int>(i));
      qkv[i] = norm.forward(qkv[i], {}, context).normed;
    }
  }
};

class QwenFamily : public ModelFamily {
 public:
  std::vector<std::string> names() const override { return qwen_architecture().names(); }
  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    static const AddedBiases biases;
    static const NormalisedHeads norms;
    const bool has_biases = request.model.name == "qwen2";
    return build_llama(qwen_arguments(request), strategies,
                       has_biases ? static_cast<const LlamaVariant*>(&biases) : &norms);
  }
  const StateDictAdapter* adapter() const override { return &qwen_adapter(); }
};

}  // namespace

const ModelFamily& qwen_family() {
  static const QwenFamily family;
  return family;
}

}  // namespace titan
