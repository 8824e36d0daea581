// The added tokens of a Hugging Face tokenizer: strings found in the text before anything else is done to it.
// Which one matches where follows the package `tokenizers` (added_vocabulary). Immutable; knows no model.
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
  bool single_word = false;  ///< only without a word character beside it
  bool lstrip = false;       ///< takes the whitespace before it along
  bool rstrip = false;       ///< and the one after it
  bool normalized = true;    ///< looked for after normalisation, not before
  bool special = false;
};

class AddedTokenFinder {
 public:
  /// Looks for tokens whose content is not empty. `contents` may differ from AddedToken::content: see `normalized`.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text between tokens
  };

  bool empty() const { return tokens_.empty(); }

  /// Cuts valid UTF-8 into tokens and what is between them: at each place the longest token, the leftmost first.
  void split(std::string_view text, std::vector<Part>& parts) const;

  /// The longest token at `at`, whatever is around it; null when there is none.
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool begins_with(unsigned char byte) const { return first_[byte]; }

 private:
  bool is_word_character(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;                                // longest first
  std::array<bool, 256> first_{};                                 // bytes that a token begins with
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_start_;  // two bytes, or one + 2^16 → indices, longest first
  Pattern word_{"\\w", Pattern::Anchor::here};
};

}  // namespace titan
