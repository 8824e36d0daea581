// How a model's parameters are named and laid out in the files of other programs, Hugging Face's and Meta's: what a
// family offers so that its weights can come and go. Pure data; who reads and writes such files is the checkpoint
// part's business.
#pragma once

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

/// The other programs' forms of one family. Requests are such that the family describes them.
class ModelExchange {
 public:
  virtual ~ModelExchange() = default;

  /// Throws Error(bad_config) for a model that Hugging Face's program cannot compute.
  virtual ForeignModel hugging_face(const ModelRequest& request) const = 0;
  /// What config.json says of the model, without dtype and token ids.
  virtual nlohmann::ordered_json hugging_face_config(const ModelRequest& request) const = 0;
  /// In what a config.json speaks of another model: "hidden_size is 2048, here 4096". Empty: it is this one.
  virtual std::vector<std::string> hugging_face_differences(const nlohmann::json& config,
                                                            const ModelRequest& request) const = 0;

  /// The files of Meta's releases, consolidated.NN.pth.
  virtual ForeignModel meta(const ModelRequest& request) const = 0;
  /// The same as hugging_face_differences for params.json.
  virtual std::vector<std::string> meta_differences(const nlohmann::json& params,
                                                    const ModelRequest& request) const = 0;
};

/// The forms of the family that serves `name`; null when no other program has one. The place to add a family's is
/// registry.cpp.
const ModelExchange* find_model_exchange(std::string_view name);

}  // namespace titan
