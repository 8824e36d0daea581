// Learns a byte-pair vocabulary from texts and writes it as tokenizer files.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace titan {

/// The files in the folder of a Hugging Face copy.
inline constexpr std::array kHuggingFaceFiles{"tokenizer.json", "tokenizer_config.json"};

class BpeTrainer;

class TokenizerTrainer {
 public:
  /// `vocabulary_size`: ids in all, the 256 bytes and the 256 special tokens included. Throws Error(bad_config) if it
  /// is less than those, or more than ids can be.
  explicit TokenizerTrainer(int64_t vocabulary_size);
  ~TokenizerTrainer();

  void add(std::string_view text);
  int64_t text_bytes() const;
  int64_t distinct_pieces() const;

  /// Learns from all texts and writes `model`, a tiktoken model file; unless it is empty, also the folder
  /// `hugging_face`: the vocabulary by rank with Llama 3's splitting, then the special tokens, of which the first is
  /// BOS and the second EOS. Every text gets the same ids from both, even if it looks like a special token. Returns the
  /// number of tokens learned, the bytes included. Throws Error(bad_data) if there is too little text, Error(storage)
  /// if writing fails.
  int64_t write(const std::filesystem::path& model, const std::filesystem::path& hugging_face) const;

 private:
  int64_t vocabulary_size_;
  std::unique_ptr<BpeTrainer> bpe_;
};

}  // namespace titan
