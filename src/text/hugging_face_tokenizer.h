// The BPE model of a tokenizer.json: pieces to ids. Byte-level (GPT-2, Llama 3, Qwen) or character-level with byte
// fallback (Llama 2). Immutable; knows nothing of pre-tokenization or added tokens.
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

#include "added_tokens.h"
#include "byte_pair_encoder.h"
#include "encode_buffers.h"
#include "json_node.h"
#include "pre_tokenizer.h"
#include "titan/text/tokenizer.h"

namespace titan {

struct SentencePieceModel;

class HuggingFaceModel {
 public:
  /// `node`: the field `model`. Throws Error(bad_data) naming the part that is damaged or unsupported.
  HuggingFaceModel(const JsonNode& node, bool byte_level);
  /// The same from vocab.json and merges.txt, as byte-level BPE.
  HuggingFaceModel(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);

  /// Appends the ids of one piece: bytes of the text, or of the normalised text. `parts` is a reusable buffer. Throws
  /// Error(bad_data) if a character needs an unknown token that the file names and its vocabulary lacks.
  void encode_piece(std::string_view piece, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

  /// The id of a token, spelled as in the file.
  std::optional<int32_t> id_of(std::string_view token) const;
  /// The token, spelled as in the file; empty if no token has this id.
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  /// One more than the highest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// Number of tokens: less than `size` if ids have gaps.
  size_t count() const { return ids_.size(); }

  /// Whether no merge and no unknown token crosses the start of a word, which begins with `mark`: text can then be
  /// split there without changing its ids.
  bool words_stand_alone(std::string_view mark) const;

  /// Upper bound on ids in a file: more would use memory that no real tokenizer needs.
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
  [[noreturn]] void refuse_unknown(std::string_view unit) const;

  bool byte_level_ = true;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  int32_t unknown_ = -1;
  std::optional<std::string> missing_unknown_;  // the name of the unknown token if the vocabulary lacks it
  std::string file_;                            // for messages; set with missing_unknown_
  std::vector<std::string> tokens_;
  IdMap ids_;
  IdMap whole_;                      // pieces that are tokens, by their bytes; filled only with ignore_merges
  std::array<int32_t, 256> byte_{};  // byte-level: ids of the bytes' characters; else: ids of <0xNN>; −1: none
  std::vector<Merge> merges_;
  MergeTable table_;
};

// The decoder of a tokenizer.json: tokens to text. Immutable; sees tokens as spelled in the file, not their ids.

class HuggingFaceDecoder {
 public:
  /// `node`: the decoder of the file, or nothing (tokens are then joined by spaces). Throws Error(bad_data) naming an
  /// unsupported type.
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

// The normaliser of a tokenizer.json: literal replacement (Llama 2) and Unicode normalisation forms (Qwen's NFC).
// Immutable.

class HuggingFaceNormalizer {
 public:
  /// `node`: the normalizer of the file, or nothing. Throws Error(bad_data) naming an unsupported type.
  explicit HuggingFaceNormalizer(const std::optional<JsonNode>& node);

  bool empty() const { return steps_.empty(); }
  std::string normalized(std::string_view text) const {
    size_t opening = 0;
    return normalized(text, opening);
  }
  /// `opening`: how many bytes at the start of the text, and then of the result, stem from a document's first
  /// character.
  std::string normalized(std::string_view text, size_t& opening) const;

 private:
  struct Step {
    std::string from;  // empty: `to` is prepended to the text
    std::string to;
    bool is_form = false;                              // `from` is the name of a normalisation form
    std::shared_ptr<const Pattern> pattern = nullptr;  // `from` as an expression
  };
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

// A Hugging Face tokenizer: tokenizer.json, or vocab.json with merges.txt; tokenizer_config.json names its BOS and EOS
// tokens. Ids equal those of the package `tokenizers`. Combines the parts above.

/// The contents of a tokenizer folder, parsed and validated.
struct HuggingFaceParts {
  HuggingFaceModel model;
  PreTokenizer pre_tokenizer;
  HuggingFaceNormalizer normalizer;
  HuggingFaceDecoder decoder;
  std::vector<AddedToken> added;
  std::vector<int32_t> before;  ///< ids that the post-processor prepends
  std::vector<int32_t> after;   ///< ids that the post-processor appends
  Tokenizer::TrimmedSpaces trimmed = Tokenizer::TrimmedSpaces::none;
  int32_t bos = Tokenizer::kNoId;
  int32_t eos = Tokenizer::kNoId;
  std::vector<std::pair<std::string, std::string>> named;  ///< special tokens by name: "pad_token"
  int32_t most_ids = 0;                                    ///< one more than the highest id of all files
  bool splits_special = false;                             ///< special tokens are not matched in a text
  std::vector<std::string> notices;                        ///< what the files disagree about
  uint64_t fingerprint = 0;
};

/// Reads `file`, a tokenizer.json or a vocab.json next to merges.txt, and the configs in its folder. Throws
/// Error(bad_data) with file, field and remedy.
HuggingFaceParts read_hugging_face_tokenizer(const std::filesystem::path& file);

/// The tokenizer that transformers makes of a SentencePiece model, or of a tiktoken file's tokens by rank, at `file`
/// and the configs beside it; nothing if there are none.
std::optional<HuggingFaceParts> read_with_settings(const std::filesystem::path& file, const SentencePieceModel& model);
std::optional<HuggingFaceParts> read_with_settings(const std::filesystem::path& file,
                                                   const std::vector<std::string>& tokens);

class HuggingFaceTokenizer : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(HuggingFaceParts parts);
  ~HuggingFaceTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  void encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const override;
  void encode_part(std::string_view text, bool at_start, std::vector<int32_t>& ids) const override;
  std::vector<int32_t> encode_by_default(std::string_view text) const override;
  std::vector<std::pair<std::string, int32_t>> special_tokens() const override;
  std::string misread_token(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  /// As spelled in the file; empty for an unused id.
  std::string token_name(int32_t id) const override;
  int64_t vocabulary_size() const override { return parts_.most_ids; }
  std::vector<std::pair<std::string, std::string>> named_tokens() const override { return parts_.named; }
  TrimmedSpaces trimmed_spaces() const override { return parts_.trimmed; }
  int32_t bos_id() const override { return parts_.bos; }
  bool adds_bos() const override;
  int32_t eos_id() const override { return parts_.eos; }
  std::string name() const override { return "Hugging Face"; }
  std::vector<std::string> notices() const override { return parts_.notices; }
  std::string description() const override;
  uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch;

  /// How to read a text: whether to match special tokens, and whether it is the start of the document.
  struct Reading {
    bool special = true;
    bool at_start = true;
  };
  void encode_text(std::string_view text, const Reading& reading, std::vector<int32_t>& ids) const;
  template <class Encode>
  static void between_tokens(const AddedTokenFinder& finder, std::string_view text, bool special,
                             std::vector<AddedTokenFinder::Part>& parts, std::vector<int32_t>& ids,
                             const Encode& encode);
  void encode_between(std::string_view text, const Reading& reading, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view text, size_t opening, Scratch& scratch, std::vector<int32_t>& ids) const;

  HuggingFaceParts parts_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  std::unordered_map<int32_t, std::string> added_names_;
  std::unordered_map<int32_t, std::string> decoded_names_;  // of the tokens that the package decodes as normalised
  bool words_stand_alone_ = false;
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace titan
