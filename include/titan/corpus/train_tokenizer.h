// `titan_train tokenizer train`, without command-line parsing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>

#include "titan/corpus/document_source.h"

namespace titan {

struct TokenizerTraining {
  DatasetOptions dataset;              ///< source of the text
  std::optional<int64_t> most_bytes;   ///< bytes of text to learn from; nothing: all
  int64_t vocabulary_size = 0;         ///< including special tokens
  std::filesystem::path output;        ///< a tiktoken model file
  std::filesystem::path hugging_face;  ///< folder for a Hugging Face copy of the tokenizer; empty: none
};

/// Learns a vocabulary, writes it, and prints a summary to `out`. Throws Error: bad_config for an impossible size or an
/// output that is part of the corpus, storage for an output that cannot be written, bad_data for invalid or too little
/// text.
void train_tokenizer(const TokenizerTraining& training, std::ostream& out);

}  // namespace titan
