#include "state_dict_adapter.h"

#include "titan/base/error.h"
#include "titan/model/llama/state_dict_adapter.h"

namespace titan {
namespace {

class QwenAdapter : public LlamaAdapter {
 public:
  ForeignModel meta(const ModelRequest&) const override {
    throw Error(ExitCode::bad_config, "Meta's files hold Llama models and no Qwen");
  }

 protected:
  Kind kind(const ModelRequest& request) const override {
    return request.model.name == "qwen2" ? Kind{"qwen2", "Qwen2ForCausalLM"} : Kind{"qwen3", "Qwen3ForCausalLM"};
  }
};

}  // namespace

const StateDictAdapter& qwen_adapter() {
  static const QwenAdapter adapter;
  return adapter;
}

}  // namespace titan
