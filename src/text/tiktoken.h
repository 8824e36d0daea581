// Llama 3's tokenizer from a tiktoken model file: byte-pair encoding by rank, and 256 special tokens after the base
// vocabulary. Encoding combines the splitter, a cache of short pieces, and the byte-pair encoder.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "byte_pair_encoder.h"
#include "encode_buffers.h"
#include "piece_splitter.h"
#include "titan/text/tokenizer.h"

namespace titan {

class TiktokenTokenizer : public Tokenizer {
 public:
  // Llama 3 has this many special tokens, named or reserved. The number of rows of its published embeddings includes
  // them.
  static constexpr int32_t kSpecialTokens = 256;

  /// `tokens[rank]`: the result of read_tiktoken_file.
  explicit TiktokenTokenizer(std::vector<std::string> tokens, std::vector<std::string> notices = {});
  ~TiktokenTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<std::pair<std::string, int32_t>> special_tokens() const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocabulary_size() const override { return encoder_.size() + kSpecialTokens; }
  int32_t bos_id() const override { return encoder_.size(); }
  int32_t eos_id() const override { return encoder_.size() + 1; }
  std::string name() const override { return "tiktoken"; }
  std::vector<std::string> notices() const override { return notices_; }
  std::string description() const override;
  uint64_t fingerprint() const override { return fingerprint_; }

  /// Ids at which generated text ends: end_of_text and eot_id.
  std::vector<int32_t> stop_ids() const { return {eos_id(), bos_id() + 9}; }

  /// Name of special token `index` of 256: "<|begin_of_text|>" is 0.
  static std::string special_name(int32_t index);

 private:
  struct Scratch;  // one encoding thread's buffers; kept between calls, because the cache improves with use

  void encode_segment(std::string_view segment, Scratch& scratch, std::vector<int32_t>& ids) const;

  BytePairEncoder encoder_;
  PieceSplitter splitter_;
  std::vector<std::string> notices_;
  uint64_t fingerprint_;
  mutable ScratchPool<Scratch> pool_;
};

// The tiktoken model file: one line per token with its bytes in base64, a space, and its rank. The reader checks
// everything that encoding relies on, so that a damaged file is reported at load time.

/// Token bytes by rank. Throws Error(bad_data) "FILE:LINE: problem; remedy" for a line that is not "base64 rank", a
/// duplicate token or rank, missing ranks, a missing single byte, an empty or missing file.
std::vector<std::string> read_tiktoken_file(const std::filesystem::path& path);

/// A tiktoken file says neither its expression nor its special tokens: these are Llama 3's here. Throws Error(bad_data)
/// if the tokens are another model's, with its name where they are known; else returns what to tell the user, which is
/// nothing for Llama 3's own and for files that `tokenizer train` made.
std::vector<std::string> check_is_llama3(const std::filesystem::path& path, std::span<const std::string> tokens);

/// Writes `tokens[rank]` in rank order, atomically, with the empty last line by which check_is_llama3 knows the file.
void write_tiktoken_file(const std::filesystem::path& path, std::span<const std::string> tokens);

/// A hash of the tokens and their ranks.
uint64_t tiktoken_fingerprint(std::span<const std::string> tokens);

/// All ways to form a token from two others in the byte alphabet, in the order of the tokens' ranks: a tiktoken
/// vocabulary has no list of merges and allows all of them.
nlohmann::json tiktoken_merges(std::span<const std::string> tokens);

/// Whether the first line of `bytes` looks like a tiktoken model file.
bool looks_like_tiktoken(std::string_view bytes);

// GPT-2's byte alphabet: writes any bytes as printable text. Each byte is one character; most of ASCII is unchanged.
// Pure functions.

/// The characters for `bytes`: a space is "Ġ", a line feed "Ċ".
std::string to_byte_alphabet(std::string_view bytes);

/// The bytes for the characters of `text` (valid UTF-8); nothing if a character is not in the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace titan
