// A SentencePiece model (Llama 2's kind of tokenizer): normalise, cut at words where no piece crosses them, encode.
// Ids and decoded text are those of the package `sentencepiece`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "titan/data/scratch_pool.h"
#include "titan/data/sentencepiece_bpe.h"
#include "titan/data/sentencepiece_model.h"
#include "titan/data/sentencepiece_normalizer.h"
#include "titan/data/tokenizer.h"
#include "titan/data/unigram_encoder.h"

namespace titan {

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
