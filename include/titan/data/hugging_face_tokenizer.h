// The decoder of a tokenizer.json: tokens to text. Immutable; knows tokens as the file writes them, not their ids.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/added_tokens.h"
#include "titan/data/encode_pipeline.h"
#include "titan/data/hugging_face_model.h"
#include "titan/data/json_node.h"
#include "titan/data/pre_tokenizer.h"
#include "titan/data/tokenizer.h"

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

// The normaliser of a tokenizer.json, as far as it is plain replacing (Llama 2's). Unicode normalisation (NFC …) is
// refused: no library for it is at hand. Immutable.

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

// A Hugging Face tokenizer: tokenizer.json, or vocab.json with merges.txt; tokenizer_config.json names its begin- and
// end-of-text tokens. Ids are those of the package `tokenizers`. Its parts have files of their own; here they meet.

/// Everything that a tokenizer folder says, read and checked.
struct HuggingFaceParts {
  HuggingFaceModel model;
  PreTokenizer pre_tokenizer;
  HuggingFaceNormalizer normalizer;
  HuggingFaceDecoder decoder;
  std::vector<AddedToken> added;
  std::vector<int32_t> before;  ///< ids that the post-processor puts before a text
  std::vector<int32_t> after;   ///< and after it
  int32_t bos = Tokenizer::kNoId;
  int32_t eos = Tokenizer::kNoId;
  int32_t most_ids = 0;  ///< one more than the highest id of all files
  uint64_t fingerprint = 0;
};

/// Reads `file`, a tokenizer.json or a vocab.json with merges.txt beside it, and the configs in its folder.
/// Throws Error(bad_data) naming file, field and what to do.
HuggingFaceParts read_hugging_face_tokenizer(const std::filesystem::path& file);

class HuggingFaceTokenizer : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(HuggingFaceParts parts);
  ~HuggingFaceTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  void encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_name(int32_t id) const override;
  int64_t vocabulary_size() const override { return parts_.most_ids; }
  int32_t bos_id() const override { return parts_.bos; }
  int32_t eos_id() const override { return parts_.eos; }
  std::string name() const override { return "Hugging Face"; }
  std::string description() const override;
  uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch;

  void encode_between(std::string_view text, bool at_start, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view text, bool at_start, Scratch& scratch, std::vector<int32_t>& ids) const;
  std::string token_text(int32_t id) const;

  HuggingFaceParts parts_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  std::unordered_map<int32_t, std::string> added_names_;
  bool words_stand_alone_ = false;
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace titan
