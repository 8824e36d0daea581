// What `titan_train tokenizer train|encode|decode|info` does, apart from reading the command line.
// Streams come from the caller; errors are titan::Error with the remedy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>

#include "titan/data/document_source.h"

namespace titan {

struct TokenizerTraining {
  static constexpr int64_t kStoryBytes = 8 << 20;  ///< the generator would never end

  DatasetOptions dataset;              ///< where the text comes from
  std::optional<int64_t> most_bytes;   ///< text to learn from; nothing: all there is, of stories kStoryBytes
  int64_t vocabulary_size = 0;         ///< special tokens included
  std::filesystem::path output;        ///< a tiktoken model file
  std::filesystem::path hugging_face;  ///< a folder for the same as a Hugging Face tokenizer; empty: none
  bool overwrite = false;              ///< what lies there already
};

/// Learns a vocabulary, writes it, and says on `out` what was made from what. Throws Error: bad_config for a size that
/// cannot be or an output that is there already or falls on the corpus, storage for an output that cannot be written,
/// bad_data for text that cannot be used or is too little.
void train_tokenizer(const TokenizerTraining& training, std::ostream& out);

struct TokenizerEncoding {
  bool bos = false;
  bool eos = false;
  int64_t measure = 0;  ///< > 0: encode so many times and print the speed of each instead of the ids
};

/// Writes the ids of all of `in` on one line, separated by spaces; with `measure`, lines "TOKENS tokens  SECONDS s RATE
/// MB/s".
void encode_stream(const std::filesystem::path& model, const TokenizerEncoding& encoding, std::istream& in,
                   std::ostream& out);

/// Writes the bytes of the ids read from `in`.
void decode_stream(const std::filesystem::path& model, std::istream& in, std::ostream& out);

/// Describes the tokenizer: kind, number of ids, special tokens, longest tokens.
void describe_tokenizer(const std::filesystem::path& model, std::ostream& out);

}  // namespace titan
