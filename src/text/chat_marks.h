// The label mask of a template with {% generation %} marks: that of `transformers` (return_assistant_tokens_mask),
// which maps characters to ids. Owned by data.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "chat_jinja.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// Where an id begins in a text.
struct TokenStart {
  size_t at;                  // start of the first character that it holds a part of
  bool in_character = false;  // earlier ids hold the first bytes of that character
};

/// Appends the starts of the ids of `text`, which begins at `offset` of a longer text. Returns false if the tokenizer
/// changes the text (normalises it), so that the ids do not decode to it.
bool append_token_starts(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids, size_t offset,
                         std::vector<TokenStart>& starts);

/// Sets the ids that hold a part of what the marks cover; `starts` are those of all ids of the text.
void set_marked(std::string_view text, std::span<const jinja::Rendered::Mark> marks, std::span<const TokenStart> starts,
                std::span<uint8_t> counts);

}  // namespace titan
