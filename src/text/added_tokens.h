// The added tokens of a Hugging Face tokenizer: strings that are matched in the text before any other processing.
// Matching follows the package `tokenizers` (added_vocabulary). Immutable; knows no model.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "piece_splitter.h"

namespace titan {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  ///< matches only without adjacent word characters
  bool lstrip = false;       ///< also consumes the whitespace before it
  bool rstrip = false;       ///< also consumes the whitespace after it
  bool normalized = true;    ///< matched after normalisation, not before
  bool special = false;
  bool says_normalized = true;  ///< else `normalized` is the opposite of `special`

  void make_special() {
    special = true;
    normalized = normalized && says_normalized;
  }
  /// What two equal tokens agree in.
  auto fields() const { return std::tie(content, id, single_word, lstrip, rstrip, normalized, special); }
  bool operator==(const AddedToken& other) const { return fields() == other.fields(); }
  bool operator<(const AddedToken& other) const { return fields() < other.fields(); }
};

/// The added tokens of one tokenizer while its files are read. Ids are given as the package does: a token's own in the
/// vocabulary, else the next free one.
class AddedVocabulary {
 public:
  /// `find`: the id of a token of the model, which has `count` tokens.
  AddedVocabulary(std::function<std::optional<int32_t>(const std::string&)> find, size_t count)
      : find_(std::move(find)), count_(static_cast<int32_t>(count)) {}

  /// Adds the token, whose id is ignored, or changes the flags of the one with this content; returns its id.
  int32_t add(AddedToken token);
  /// Null if no added token has this content.
  const AddedToken* find(const std::string& content) const;
  std::optional<int32_t> id_of(const std::string& content) const;
  /// By id.
  std::vector<AddedToken> tokens() const;

 private:
  /// A token that has its id.
  void put(AddedToken token);

  std::function<std::optional<int32_t>(const std::string&)> find_;
  int32_t count_;
  int32_t highest_ = -1;
  std::unordered_map<std::string, AddedToken> tokens_;
};

class AddedTokenFinder {
 public:
  /// Ignores tokens with empty content. `contents` may differ from AddedToken::content: see `normalized`.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text between tokens
  };

  bool empty() const { return tokens_.empty(); }

  /// Splits valid UTF-8 into tokens and the text between them: leftmost match first, longest token at each position.
  /// `special`: whether special tokens are read, too. As in the package, a token within the whitespace that the one
  /// before it consumes is found, and the text after it read again.
  void split(std::string_view text, std::vector<Part>& parts, bool special = true) const;

  /// The longest token at `at`, regardless of its context; null if there is none.
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool begins_with(unsigned char byte) const { return first_[byte]; }

 private:
  bool is_word_character(std::string_view text, size_t at) const;

  /// Consecutive tokens: [begin, end).
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  const AddedToken* longest_in(const Range& range, std::string_view text) const;

  std::vector<AddedToken> tokens_;   // by content, which differs
  std::vector<uint32_t> beginning_;  // of each token: the longest other one that it begins with, or kNoToken
  std::array<bool, 256> first_{};    // first bytes of tokens
  std::unordered_map<uint32_t, Range> by_start_;  // two bytes, or one + 2^16
  // The word characters of Rust's regex: Unicode's, with the joiners.
  Pattern word_{
      R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])",
      Pattern::Anchor::here};
};

}  // namespace titan
