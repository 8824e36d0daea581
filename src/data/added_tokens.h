// The added tokens of a Hugging Face tokenizer: strings that are matched in the text before any other processing.
// Matching follows the package `tokenizers` (added_vocabulary). Immutable; knows no model.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
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
  void split(std::string_view text, std::vector<Part>& parts) const;

  /// The longest token at `at`, regardless of its context; null if there is none.
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool begins_with(unsigned char byte) const { return first_[byte]; }

 private:
  bool is_word_character(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;                                // longest first
  std::array<bool, 256> first_{};                                 // first bytes of tokens
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_start_;  // two bytes, or one + 2^16 → indices, longest first
  Pattern word_{"\\w", Pattern::Anchor::here};
};

}  // namespace titan
