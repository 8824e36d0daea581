// Text to token ids and back. One interface for every kind of tokenizer file; `open_tokenizer` detects the kind. A
// tokenizer is immutable after opening and thread-safe.
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

  /// Whether it can encode text. If not (RecordedVocabulary), it only describes ids.
  virtual bool reads_text() const { return true; }

  /// Appends the ids of `text`, without BOS and EOS. Accepts any bytes: invalid UTF-8 becomes U+FFFD, as in Python's
  /// decode("utf-8", "replace"). Text that looks like a special token is encoded like the default of this kind's Python
  /// package: as ordinary text, except for the added tokens of a Hugging Face folder.
  virtual void encode_append(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// Appends the ids of `text` as a document: with BOS before and EOS after it if requested and if the tokenizer has
  /// them. Each is added once, even if the tokenizer's post-processor also adds it; the post-processor's other ids are
  /// kept.
  virtual void encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const;

  /// Appends the ids of `text`, a part of a longer text (`at_start`: its beginning): like encode_append, but text that
  /// looks like a special token is ordinary text for every kind of tokenizer.
  virtual void encode_part(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;

  /// Names and ids of tokens that ordinary text does not produce, unless it contains their names. A chat template
  /// encodes these names as the ids.
  virtual std::vector<std::pair<std::string, int32_t>> special_tokens() const { return {}; }

  /// A token of special_tokens() that the kind's Python package finds more or less often in `text` than the token's
  /// name stands in it; empty if there is none.
  virtual std::string misread_token(std::string_view /*text*/) const { return {}; }

  /// The special tokens that have a name, which chat templates read: ("bos_token", "<s>").
  virtual std::vector<std::pair<std::string, std::string>> named_tokens() const;

  /// The text of the ids, identical to the result of this kind's Python package: ids whose bytes are invalid UTF-8
  /// become U+FFFD. Throws Error(bad_data) for an invalid id.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// An id's token as the tokenizer's own file writes it: "<s>", "▁the", "<|begin_of_text|>".
  virtual std::string token_name(int32_t id) const { return decode(std::span(&id, 1)); }

  /// Number of ids, including special tokens: every id is in [0, vocabulary_size).
  virtual int64_t vocabulary_size() const = 0;
  /// kNoId if the tokenizer has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  /// True if the kind's Python package puts BOS before a text by default.
  virtual bool adds_bos() const { return bos_id() != kNoId; }
  /// The ids of `text` as the kind's Python package gives them by default: with all that it puts before and after.
  virtual std::vector<int32_t> encode_by_default(std::string_view text) const {
    return encode(text, adds_bos(), false);
  }

  /// Spaces at a token's ends that the kind's Python package leaves out of the token's offsets (trim_offsets).
  enum class TrimmedSpaces { none, all, all_but_the_first };  // the first: the space that is put before the text
  virtual TrimmedSpaces trimmed_spaces() const { return TrimmedSpaces::none; }

  /// One line for the user for each setting in which the tokenizer's files contradict each other: which one is used.
  virtual std::vector<std::string> notices() const { return {}; }

  /// The kind of tokenizer, for messages: "tiktoken".
  virtual std::string name() const = 0;
  /// The line printed at start, in torchtitan's format.
  virtual std::string description() const = 0;
  /// A hash of the vocabulary and all rules: data tokenized with one fingerprint is invalid with another.
  virtual uint64_t fingerprint() const = 0;

  /// All ids of `text`, with BOS and EOS if requested (see encode_framed).
  std::vector<int32_t> encode(std::string_view text, bool bos, bool eos) const;
};

/// Opens the tokenizer at `path`: a tiktoken or SentencePiece model file, a tokenizer.json, a vocab.json next to
/// merges.txt, or a folder with one of them. Throws Error(bad_data) with the problem, its place and the remedy.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

/// An id as text: "none" for kNoId.
std::string shown_id(int32_t id);

}  // namespace titan
