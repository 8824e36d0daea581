// The normaliser of a tokenizer.json, as far as it is plain replacing (Llama 2's). Unicode normalisation (NFC …) is
// refused: no library for it is at hand. Immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/json_node.h"

namespace titan {

class HuggingFaceNormalizer {
 public:
  /// `node`: the normalizer of the file, or nothing. Throws Error(bad_data) naming a type that is not read here.
  explicit HuggingFaceNormalizer(const std::optional<JsonNode>& node);

  bool empty() const { return steps_.empty(); }
  std::string normalized(std::string_view text) const;

 private:
  struct Step {
    std::string from;  // empty: `to` is put before the text
    std::string to;
  };
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

}  // namespace titan
