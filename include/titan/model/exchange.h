// How a model's parameters are named and laid out in the files of other programs, Hugging Face's and Meta's, and what
// has to be known besides: what a family offers so that its weights can come and go. Pure data; who reads and writes
// such files is the checkpoint part's business.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

struct ModelRequest;

/// A parameter as another program stores it.
struct ForeignTensor {
  std::string name;  // there
  std::string ours;
  std::vector<int64_t> shape;
  /// > 0: the rows belong to so many heads, whose two numbers that turn together are neighbours here and half a head
  /// apart there.
  int64_t rotary_heads = 0;

  bool operator==(const ForeignTensor&) const = default;
};

struct ForeignModel {
  std::vector<ForeignTensor> tensors;  // every parameter once, in the order of the model
  /// Names that may be there as well, with the name of the tensor whose values they must repeat: tied weights.
  std::map<std::string, std::string> copies;
  /// Ends of names of tensors that hold nothing to keep: tables that are computed.
  std::vector<std::string> ignored;
};

/// Something a model computes with that neither names nor shapes of its parameters show: weights go with it. Values are
/// words, the same whenever the values are.
struct ModelFact {
  std::string name;                 // n_heads
  std::string value;                // 16
  std::string option;               // what decides it: model.override.n_heads
  bool changed_on_purpose = false;  // often, by who begins from trained weights: for longer sequences, say
};

/// In what another program's settings speak of another model.
struct SettingDifference {
  std::string sentence;             // "hidden_size is 2048, here 4096"
  bool changed_on_purpose = false;  // as ModelFact's

  bool operator==(const SettingDifference&) const = default;
};

/// The other programs' forms of one family. Requests are such that the family describes them.
class StateDictAdapter {
 public:
  virtual ~StateDictAdapter() = default;

  /// What must be remembered with the weights, in files of ours too.
  virtual std::vector<ModelFact> facts(const ModelRequest& request) const = 0;

  /// Throws Error(bad_config) for a model that Hugging Face's program cannot compute.
  virtual ForeignModel hugging_face(const ModelRequest& request) const = 0;
  /// What config.json says of the model, without dtype and token ids.
  virtual nlohmann::ordered_json hugging_face_config(const ModelRequest& request) const = 0;
  /// In what a config.json speaks of another model. Empty: it is this one.
  virtual std::vector<SettingDifference> hugging_face_differences(const nlohmann::json& config,
                                                                  const ModelRequest& request) const = 0;

  /// Tables that torchtitan of December 2024 saved beside the parameters, by name, for sequences of the request's
  /// length.
  virtual std::map<std::string, at::Tensor> tables_of_2024(const ModelRequest& request) const = 0;

  /// The files of Meta's releases, consolidated.NN.pth.
  virtual ForeignModel meta(const ModelRequest& request) const = 0;
  /// The same as hugging_face_differences for params.json.
  virtual std::vector<SettingDifference> meta_differences(const nlohmann::json& params,
                                                          const ModelRequest& request) const = 0;
};

/// The forms of the family that serves `name`; null when no other program has one. The place to add a family's is
/// registry.cpp.
const StateDictAdapter* find_state_dict_adapter(std::string_view name);

}  // namespace titan
