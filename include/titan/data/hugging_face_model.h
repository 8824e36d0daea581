// The BPE model of a tokenizer.json: pieces to ids. Byte-level (GPT-2, Llama 3, Qwen) or over characters with bytes as
// a last resort (Llama 2). Immutable; knows nothing of splitting or added tokens.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "titan/data/byte_pair_encoder.h"
#include "titan/data/json_node.h"

namespace titan {

class HuggingFaceModel {
 public:
  /// `node`: the field `model`. Throws Error(bad_data) naming what of it is damaged or not read here.
  HuggingFaceModel(const JsonNode& node, bool byte_level);
  /// The same from vocab.json and merges.txt, as byte-level BPE.
  HuggingFaceModel(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);

  /// Appends the ids of one piece: bytes of the text, or of the normalised text. `parts` is working memory.
  void encode_piece(std::string_view piece, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

  /// The id of a token as the file writes it.
  std::optional<int32_t> id_of(std::string_view token) const;
  /// As the file writes it; empty where there is no token of that id.
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  /// One more than the highest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// How many tokens there are: less than `size` where ids are left out.
  size_t count() const { return ids_.size(); }

  /// Whether no merge and no unknown token reaches over the beginning of a word, marked by `mark`: then text may be
  /// cut there without a change of its ids.
  bool words_stand_alone(std::string_view mark) const;

  /// Ids that a file may use: more would take memory that no real tokenizer needs.
  static constexpr int32_t kMostIds = 4'000'000;

 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using IdMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

  void read_vocabulary(const JsonNode& vocabulary);
  void read_merges(const JsonNode& merges);
  void add_merge(std::string_view left, std::string_view right, const std::function<void(std::string_view)>& fail);
  void prepare();
  void first_parts(std::string_view piece, std::vector<int32_t>& parts) const;
  bool add_bytes(std::string_view unit, std::vector<int32_t>& parts) const;

  bool byte_level_ = true;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  int32_t unknown_ = -1;
  std::vector<std::string> tokens_;
  IdMap ids_;
  IdMap whole_;                      // pieces that are tokens: by their bytes; filled where ignore_merges asks for it
  std::array<int32_t, 256> byte_{};  // byte-level: of each byte's character; else: of <0xNN>; −1 where there is none
  std::vector<Merge> merges_;
  MergeTable table_;
};

}  // namespace titan
