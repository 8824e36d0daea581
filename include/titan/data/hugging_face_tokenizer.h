// A Hugging Face tokenizer: tokenizer.json, or vocab.json with merges.txt; tokenizer_config.json names its begin- and
// end-of-text tokens. Ids are those of the package `tokenizers`. Its parts have files of their own; here they meet.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/added_tokens.h"
#include "titan/data/hugging_face_decoder.h"
#include "titan/data/hugging_face_model.h"
#include "titan/data/hugging_face_normalizer.h"
#include "titan/data/pre_tokenizer.h"
#include "titan/data/scratch_pool.h"
#include "titan/data/tokenizer.h"

namespace titan {

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
