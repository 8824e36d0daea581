// `titan_train tokenizer train|encode|decode|info`, without command-line parsing. The caller passes the streams; errors
// are titan::Error with the remedy.
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

/// Bytes of the longest text that encode and decode take: it and its ids are held as a whole. Encoding a corpus is what
/// `data tokenize` is for.
inline constexpr size_t kLongestText = size_t{256} << 20;
/// Throws Error(bad_data) with that way out.
[[noreturn]] void refuse_long_text();

struct TokenizerTraining {
  DatasetOptions dataset;              ///< source of the text
  std::optional<int64_t> most_bytes;   ///< bytes of text to learn from; nothing: all
  int64_t vocabulary_size = 0;         ///< including special tokens
  std::filesystem::path output;        ///< a tiktoken model file
  std::filesystem::path hugging_face;  ///< folder for a Hugging Face copy of the tokenizer; empty: none
  bool overwrite = false;              ///< replace existing output
};

/// Learns a vocabulary, writes it, and prints a summary to `out`. Throws Error: bad_config for an impossible size or an
/// output that exists or is part of the corpus, storage for an output that cannot be written, bad_data for invalid or
/// too little text.
void train_tokenizer(const TokenizerTraining& training, std::ostream& out);

struct TokenizerEncoding {
  bool bos = false;
  bool eos = false;
  int64_t measure = 0;  ///< > 0: encode this many times and print the speed of each run instead of the ids
};

/// Prints the ids of all text in `in` on one line, separated by spaces; with `measure`, lines "TOKENS tokens  SECONDS s
/// RATE MB/s".
void encode_stream(const std::filesystem::path& model, const TokenizerEncoding& encoding, std::istream& in,
                   std::ostream& out);

/// Writes the decoded bytes of the ids in `in`.
void decode_stream(const std::filesystem::path& model, std::istream& in, std::ostream& out);

/// Prints a description of the tokenizer: kind, number of ids, special tokens, longest tokens.
void describe_tokenizer(const std::filesystem::path& model, std::ostream& out);

// `titan_train data stats` and `peek`: print statistics and examples of a corpus.

struct Inspection {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;  ///< empty: do not count or show tokens
  std::string chat_template;        ///< for conversations; needs a tokenizer; empty: the records are texts
  int64_t documents = 3;            ///< for show_documents
};

/// Reads the whole corpus (text on all cores) and prints documents, bytes, tokens, labels (of conversations), document
/// lengths and problems of records. Throws Error(bad_data) if reading fails.
void describe_corpus(const Inspection& wanted, std::ostream& out);

/// Prints the start of the first documents and their positions; with a tokenizer also the first 32 ids, each with its
/// text. Prints conversations as encoded by the template; ids that are labels have a *.
void show_documents(const Inspection& wanted, std::ostream& out);

// Writes a byte-level vocabulary in Hugging Face's format. Its reader is hugging_face_tokenizer.h.

/// The files in the folder.
inline constexpr std::array kHuggingFaceFiles{"tokenizer.json", "tokenizer_config.json"};

/// Creates `folder` with these two files: the vocabulary `tokens` (by rank) with Llama 3's splitting, then the special
/// tokens `special`; the first is BOS and the second EOS. Every text gets the same ids as from the tiktoken file, even
/// if it looks like a special token. Throws Error(storage) if writing fails.
void write_hugging_face_tokenizer(const std::filesystem::path& folder, std::span<const std::string> tokens,
                                  std::span<const std::string> special);

}  // namespace titan
