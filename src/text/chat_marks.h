// The label mask of a template with {% generation %} marks: that of `transformers` (return_assistant_tokens_mask),
// which maps characters to ids.
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

/// Where an id's part of a text begins and ends.
struct TokenSpan {
  size_t begin;
  size_t end;
};

/// The spans of all ids of `text`, which begin at `starts`, as the tokenizer's Python package gives them.
std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids,
                                   std::span<const TokenStart> starts);

/// Sets the ids whose spans overlap with what the marks cover.
void set_marked(std::string_view text, std::span<const jinja::Rendered::Mark> marks, std::span<const TokenSpan> spans,
                std::span<uint8_t> counts);

}  // namespace titan
