// SentencePiece's BPE model: characters merge to the piece of the highest score, leftmost of equals. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "titan/data/added_tokens.h"
#include "titan/data/byte_pair_encoder.h"
#include "titan/data/encode_pipeline.h"
#include "titan/data/sentencepiece_model.h"
#include "titan/data/tokenizer.h"
#include "titan/data/unigram_encoder.h"

namespace titan {

class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model);

  /// Appends the ids of a stretch of normalised text that no piece reaches out of; see UnigramEncoder::encode.
  void encode(std::string_view stretch, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

 private:
  void add_merges(const SentencePieceModel& model);
  void first_parts(std::string_view stretch, std::vector<int32_t>& parts) const;

  // A part is a piece's id, the number of a character that is no piece but occurs in some (from pieces on), −1 for any
  // other character, or −2 − id for a user-defined piece, which merges with nothing.
  std::unordered_map<char32_t, int32_t> characters_;
  std::vector<uint32_t> lengths_;  // bytes of a part
  MergeTable table_;
  AddedTokenFinder user_defined_;
  std::vector<int32_t> byte_ids_;
  int32_t pieces_;
  int32_t unknown_id_;
};

// How a SentencePiece model rewrites text before it is cut: its precompiled character rules, and what it does with
// spaces. Immutable; a Pass walks through one text.

class SentencePieceNormalizer {
 public:
  /// Throws Error(bad_data) without the file's name when the rules are damaged.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  /// One text on its way, so that a long one need not be held in normalised form as a whole.
  class Pass {
   public:
    /// `text` is valid UTF-8 and outlives the pass.
    Pass(const SentencePieceNormalizer& owner, std::string_view text);

    /// Appends normalised text until `out` holds at least `bytes` or the text is at its end; false when it is. Spaces
    /// at the end of the text are then taken off `out` where the model asks for it, so whoever consumes `out` before
    /// must leave its trailing spaces there.
    bool run(size_t bytes, std::string& out);

   private:
    void append(std::string_view piece, std::string& out);

    const SentencePieceNormalizer& owner_;
    std::string_view rest_;
    bool after_space_;
    bool started_ = false;
    bool wrote_nothing_ = false;
  };

 private:
  struct Rewritten {
    std::string_view text;
    size_t taken;  // bytes of the input that it stands for
  };
  Rewritten rewrite_front(std::string_view text) const;
  Rewritten rewrite_by_rule(std::string_view text) const;
  void read_charsmap(std::string_view charsmap);
  void find_simple_bytes();

  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  AddedTokenFinder user_defined_;
  std::vector<uint32_t> trie_;      // a double array: see rewrite_by_rule
  std::string replacements_;        // strings that end in NUL, named by their offset
  std::array<bool, 128> simple_{};  // ASCII that stands for itself whenever ASCII or nothing follows
};

// A SentencePiece model (Llama 2's kind of tokenizer): normalise, cut at words where no piece crosses them, encode.
// Ids and decoded text are those of the package `sentencepiece`.

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// Throws Error(bad_data) without the file's name when the model's normalisation rules are damaged.
  explicit SentencePieceTokenizer(SentencePieceModel model);
  ~SentencePieceTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_name(int32_t id) const override { return piece(id).text; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  int32_t bos_id() const override { return bos_id_; }
  int32_t eos_id() const override { return eos_id_; }
  std::string name() const override;
  std::string description() const override;
  uint64_t fingerprint() const override { return model_.fingerprint; }

 private:
  struct Scratch;

  template <class Encode>
  void for_each_stretch(std::string_view text, std::string& normalized, const Encode& encode) const;
  const SentencePiece& piece(int32_t id) const;

  SentencePieceModel model_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<SentencePieceBpe> bpe_;
  std::unique_ptr<UnigramEncoder> unigram_;
  int32_t bos_id_ = kNoId;
  int32_t eos_id_ = kNoId;
  bool words_stand_alone_;  // no piece holds a word mark after anything but word marks
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace titan
