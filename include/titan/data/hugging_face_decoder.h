// The decoder of a tokenizer.json: tokens to text. Immutable; knows tokens as the file writes them, not their ids.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "titan/data/json_node.h"

namespace titan {

class HuggingFaceDecoder {
 public:
  /// `node`: the decoder of the file, or nothing (tokens are then joined by spaces). Throws Error(bad_data) naming a
  /// type that is not read here.
  explicit HuggingFaceDecoder(const std::optional<JsonNode>& node);
  static HuggingFaceDecoder byte_level();

  std::string decode(std::vector<std::string> tokens) const;

 private:
  HuggingFaceDecoder() = default;
  void add(const JsonNode& node);

  using Step = std::function<void(std::vector<std::string>&)>;
  std::vector<Step> steps_;
  bool joined_by_spaces_ = false;
};

}  // namespace titan
