// Text to token ids and back. One interface for every kind of tokenizer file; `open_tokenizer` finds out which kind it
// is. Owned by data; a tokenizer is immutable once opened and may be used from several threads at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`. Any bytes are accepted: invalid UTF-8 counts as U+FFFD, the way Python's
  /// decode("utf-8", "replace") reads it. Text that looks like a special token is ordinary text.
  virtual void encode_append(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// The bytes that the ids stand for; special tokens give their names. Throws Error(bad_data) for an id that is none.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Number of ids, special tokens included: every id is in [0, vocabulary_size).
  virtual int64_t vocabulary_size() const = 0;
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;

  /// The kind of tokenizer, for people: "tiktoken".
  virtual std::string name() const = 0;
  /// The line shown at start, in the shape of torchtitan.md section 6.
  virtual std::string description() const = 0;

  /// All ids of `text`, with the begin-of-text id before and the end-of-text id after it where asked.
  std::vector<int32_t> encode(std::string_view text, bool bos, bool eos) const;
};

/// Opens the tokenizer in `path`: a tiktoken model file, or a folder that holds one as tokenizer.model.
/// Throws Error(bad_data) with what is wrong, file and line, and what to do; other kinds are named as not built yet.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

}  // namespace titan
