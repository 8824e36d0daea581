// Text to token ids and back. One interface for every kind of tokenizer file; `open_tokenizer` finds out which kind it
// is. Owned by data; a tokenizer is immutable once opened and may be used from several threads at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan {

class Tokenizer {
 public:
  static constexpr int32_t kNoId = -1;

  virtual ~Tokenizer() = default;

  /// Whether it knows how text becomes ids. One that does not (RecordedVocabulary) serves for ids alone.
  virtual bool reads_text() const { return true; }

  /// Appends the ids of `text` alone to `ids`: nothing is added before or after. Any bytes are accepted: invalid UTF-8
  /// counts as U+FFFD, the way Python's decode("utf-8", "replace") reads it. Text that looks like a special token is
  /// read as the Python package of this kind of tokenizer reads it by default: ordinary text, but for the added tokens
  /// of a Hugging Face folder.
  virtual void encode_append(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// Appends `text` as a document: the begin-of-text id before and the end-of-text id after it where asked and where
  /// the tokenizer has them; each once, also where the tokenizer's own post-processor adds them, whose other ids
  /// stand where it puts them.
  virtual void encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const;

  /// Appends the ids of `text`, which is part of a longer one (`at_start`: its front): as encode_append, but text that
  /// looks like a special token is ordinary text for every kind of tokenizer.
  virtual void encode_part(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;

  /// Tokens that text does not become, or only where it is written as they are: name and id. They stand for themselves
  /// in a chat template.
  virtual std::vector<std::pair<std::string, int32_t>> special_tokens() const { return {}; }

  /// The text that the ids stand for, byte for byte what the Python package of this kind gives: ids whose bytes make no
  /// UTF-8 stand for U+FFFD. Throws Error(bad_data) for an id that is none.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// How one id is written in the tokenizer's own file, for people: "<s>", "▁the", "<|begin_of_text|>".
  virtual std::string token_name(int32_t id) const { return decode(std::span(&id, 1)); }

  /// Number of ids, special tokens included: every id is in [0, vocabulary_size).
  virtual int64_t vocabulary_size() const = 0;
  /// kNoId where the tokenizer has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;

  /// The kind of tokenizer, for people: "tiktoken".
  virtual std::string name() const = 0;
  /// The line shown at start, in the shape of torchtitan.
  virtual std::string description() const = 0;
  /// A number made of the vocabulary and all rules: what was tokenized under one is no text of another.
  virtual uint64_t fingerprint() const = 0;

  /// All ids of `text`, framed where asked (see encode_framed).
  std::vector<int32_t> encode(std::string_view text, bool bos, bool eos) const;
};

/// Opens the tokenizer in `path`: a tiktoken or SentencePiece model file, a tokenizer.json, a vocab.json with
/// merges.txt beside it, or a folder with one of them; of a .bin file of ids, the vocabulary that its index names
/// (RecordedVocabulary). Throws Error(bad_data) with what is wrong, where, and what to
/// do.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

/// An id for people: "none" for kNoId.
std::string shown_id(int32_t id);

}  // namespace titan
