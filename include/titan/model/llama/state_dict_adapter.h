// Llama's state-dict adapter; relatives of Llama derive theirs from it.
#pragma once

#include "titan/model/llama/llama.h"
#include "titan/model/state_dict_adapter.h"

namespace titan {

class LlamaAdapter : public StateDictAdapter {
 public:
  std::vector<ModelFact> facts(const ModelRequest& request) const override;
  ForeignModel hugging_face(const ModelRequest& request) const override;
  nlohmann::ordered_json hugging_face_config(const ModelRequest& request) const override;
  std::vector<SettingDifference> hugging_face_differences(const nlohmann::json& config,
                                                          const ModelRequest& request) const override;
  std::map<std::string, at::Tensor> tables_of_2024(const ModelRequest& request) const override;
  ForeignModel meta(const ModelRequest& request) const override;
  std::vector<SettingDifference> meta_differences(const nlohmann::json& params,
                                                  const ModelRequest& request) const override;

 protected:
  /// The model's names in transformers.
  struct Kind {
    const char* model_type;
    const char* architecture;
  };
  virtual Kind kind(const ModelRequest& request) const;
};

const StateDictAdapter& llama_adapter();

}  // namespace titan
