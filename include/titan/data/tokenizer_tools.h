// What `titan_train tokenizer train|encode|decode|info` does, apart from reading the command line.
// Streams come from the caller; errors are titan::Error with the remedy.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>

#include "titan/data/document_source.h"

namespace titan {

struct TokenizerTraining {
  DatasetOptions dataset;              ///< where the text comes from
  std::optional<int64_t> most_bytes;   ///< text to learn from; nothing: all there is
  int64_t vocabulary_size = 0;         ///< special tokens included
  std::filesystem::path output;        ///< a tiktoken model file
  std::filesystem::path hugging_face;  ///< a folder for the same as a Hugging Face tokenizer; empty: none
  bool overwrite = false;              ///< what is there already
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

// What `titan_train data stats` and `peek` do: say what a corpus holds, in numbers and by example.

struct Inspection {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;  ///< empty: no tokens are counted or shown
  std::string chat_template;        ///< of conversations, which need a tokenizer; empty: the records are texts
  int64_t documents = 3;            ///< for show_documents
};

/// Reads the whole corpus, texts with all cores: documents, bytes, tokens, of conversations the labels, how long
/// documents are, what is wrong with records. Throws Error(bad_data) as reading does.
void describe_corpus(const Inspection& wanted, std::ostream& out);

/// The beginning of the first documents, where they are, and with a tokenizer their first 32 ids with the text of each.
/// Of conversations as the template writes them, and what of them counts as labels: the ids with a *.
void show_documents(const Inspection& wanted, std::ostream& out);

// Writes a byte-level vocabulary the way Hugging Face's programs read it. What reads it back: hugging_face_tokenizer.h.

/// What is written into the folder.
inline constexpr std::array kHuggingFaceFiles{"tokenizer.json", "tokenizer_config.json"};

/// Makes `folder` with these two: the vocabulary `tokens` (by rank) with Llama 3's
/// splitting, and after it the special tokens `special`, of which the first begins a text and the second ends it. Every
/// text gets the ids of the tiktoken form, what looks like a special token included. Throws Error(storage) when it
/// cannot be written.
void write_hugging_face_tokenizer(const std::filesystem::path& folder, std::span<const std::string> tokens,
                                  std::span<const std::string> special);

}  // namespace titan
