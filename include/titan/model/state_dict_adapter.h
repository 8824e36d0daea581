// How a model's parameters are named and laid out in Hugging Face's and Meta's files, and what a family provides so
// that weights can be imported and exported. Pure data; the checkpoint part reads and writes the files.
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

/// A parameter as stored by another program.
struct ForeignTensor {
  std::string name;  // its name in the file
  std::string ours;
  std::vector<int64_t> shape;
  /// > 0: rows are grouped into this many heads; a rotary pair is adjacent here and half a head apart in the file.
  int64_t rotary_heads = 0;

  bool operator==(const ForeignTensor&) const = default;
};

struct ForeignModel {
  std::vector<ForeignTensor> tensors;  // every parameter once, in model order
  /// Optional additional names → the tensor that they must equal: tied weights.
  std::map<std::string, std::string> copies;
  /// Suffixes of tensors to ignore: computed tables.
  std::vector<std::string> ignored;
};

/// A setting that affects the model's output but not the names or shapes of its parameters; it is stored with the
/// weights. Equal values have equal strings.
struct ModelFact {
  std::string name;                 // n_heads
  std::string value;                // 16
  std::string option;               // the option that sets it: model.override.n_heads
  bool changed_on_purpose = false;  // often changed deliberately, e.g. for longer sequences
};

/// A difference between another program's settings and this model.
struct SettingDifference {
  std::string sentence;             // "hidden_size is 2048, here 4096"
  bool changed_on_purpose = false;  // as in ModelFact

  bool operator==(const SettingDifference&) const = default;
};

/// A family's formats in other programs. Requests must be ones that the family can describe.
class StateDictAdapter {
 public:
  virtual ~StateDictAdapter() = default;

  /// The facts to store with the weights, also in titan's own files.
  virtual std::vector<ModelFact> facts(const ModelRequest& request) const = 0;

  /// Throws Error(bad_config) for a model that Hugging Face's implementation cannot represent.
  virtual ForeignModel hugging_face(const ModelRequest& request) const = 0;
  /// The model's part of config.json, without dtype and token ids.
  virtual nlohmann::ordered_json hugging_face_config(const ModelRequest& request) const = 0;
  /// The differences between a config.json and the model; empty if it describes this model.
  virtual std::vector<SettingDifference> hugging_face_differences(const nlohmann::json& config,
                                                                  const ModelRequest& request) const = 0;

  /// Tables that torchtitan of December 2024 saved with the parameters, by name, for the request's sequence length.
  virtual std::map<std::string, at::Tensor> tables_of_2024(const ModelRequest& request) const = 0;

  /// The files of Meta's releases: consolidated.NN.pth.
  virtual ForeignModel meta(const ModelRequest& request) const = 0;
  /// hugging_face_differences for params.json.
  virtual std::vector<SettingDifference> meta_differences(const nlohmann::json& params,
                                                          const ModelRequest& request) const = 0;
};

/// The adapter of the family that serves `name`; null if no other program supports it.
const StateDictAdapter* find_state_dict_adapter(std::string_view name);

}  // namespace titan
