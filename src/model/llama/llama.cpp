#include "titan/model/llama/llama.h"

#include <algorithm>
#include <cmath>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/model/llama/state_dict_adapter.h"
#include "titan/model/llama/units.h"
#include "titan/ops/embedding.h"

namespace titan {
namespace {

class LlamaModel : public Model {
 public:
  LlamaModel(const LlamaArguments& arguments, const ModelStrategies& strategies, const LlamaVariant* variant)
      : arguments_(arguments), rotary_(std::make_shared<RotaryTable>()) {
    Parameter& embedding = add_parameter(llama_embedding_parameter(arguments));
    chain_.push_back(std::make_shared<LlamaEmbedding>(embedding, strategies));
    for (int64_t layer = 0; layer < arguments.layers; ++layer) {
      chain_.push_back(std::make_shared<LlamaBlock>(layer, arguments, add_block(layer), variant, rotary_, strategies));
    }
    add_head(strategies, embedding);
  }

  void prepare(const at::Device& device) override {
    rotary_->rows =
        rotary_table(arguments_.max_sequence, arguments_.head_dim, arguments_.rope_theta, arguments_.rope_scaling)
            .to(device);
  }

 private:
  LlamaBlockParameters add_block(int64_t layer) {
    const std::vector<ParameterSpec> specs = llama_block_parameters(arguments_, layer);
    auto named = [&](const std::string& suffix) -> Parameter* {
      for (const ParameterSpec& spec : specs) {
        if (spec.name.ends_with(suffix)) return &add_parameter(spec);
      }
      return nullptr;
    };
    LlamaBlockParameters p{};
    p.wq = named(".wq.weight"), p.wk = named(".wk.weight"), p.wv = named(".wv.weight"), p.wo = named(".wo.weight");
    p.w1 = named(".w1.weight"), p.w2 = named(".w2.weight"), p.w3 = named(".w3.weight");
    p.attention_norm = named(".attention_norm.weight"), p.ffn_norm = named(".ffn_norm.weight");
    if (arguments_.variant) {
      for (const ParameterSpec& spec : arguments_.variant->parameters(arguments_, layer)) {
        p.variant.push_back(&add_parameter(spec));
      }
    }
    return p;
  }

  void add_head(const ModelStrategies& strategies, Parameter& embedding) {
    Parameter* norm = nullptr;
    Parameter* output = arguments_.tied ? &embedding : nullptr;
    for (const ParameterSpec& spec : llama_head_parameters(arguments_)) {
      (spec.name == "norm.weight" ? norm : output) = &add_parameter(spec);
    }
    chain_.push_back(std::make_shared<LlamaHead>(arguments_, norm, *output, strategies));
  }

  LlamaArguments arguments_;
  std::shared_ptr<RotaryTable> rotary_;
};

class LlamaFamily : public ModelFamily {
 public:
  std::vector<std::string> names() const override { return llama_architecture().names(); }

  std::unique_ptr<Model> build(const ModelRequest& request, const ModelStrategies& strategies) const override {
    return build_llama(llama_arguments(request), strategies);
  }

  const StateDictAdapter* adapter() const override { return &llama_adapter(); }
};

}  // namespace

std::unique_ptr<Model> build_llama(const LlamaArguments& arguments, const ModelStrategies& strategies,
                                   const LlamaVariant* variant) {
  TITAN_CHECK((variant == nullptr) == (arguments.variant == nullptr));
  return std::make_unique<LlamaModel>(arguments, strategies, variant);
}

const ModelFamily& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace titan
