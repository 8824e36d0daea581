#include "chat_marks.h"

#include <algorithm>

#include "titan/text/utf8.h"

namespace titan {

namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Length of the whole characters at the start of `decoded` that `text` begins with.
size_t common_characters(std::string_view decoded, std::string_view text) {
  size_t same = static_cast<size_t>(std::mismatch(decoded.begin(), decoded.end(), text.begin(), text.end()).first -
                                    decoded.begin());
  while (same > 0 && same < text.size() && (static_cast<unsigned char>(text[same]) & 0xC0) == 0x80) --same;
  return same;
}

constexpr std::string_view kByteLevelSpace = "\u0120";

/// Number of spaces that `name` begins (ends) with, as a byte-level vocabulary writes them.
size_t spaces_before(std::string_view name) {
  size_t count = 0;
  for (; name.starts_with(kByteLevelSpace); ++count) name.remove_prefix(kByteLevelSpace.size());
  return count;
}
size_t spaces_after(std::string_view name) {
  size_t count = 0;
  for (; name.ends_with(kByteLevelSpace); ++count) name.remove_suffix(kByteLevelSpace.size());
  return count;
}

/// As `tokenizers` trims offsets: by the spaces of the token, whatever the text has there.
void trim_spaces(std::string_view name, bool keeps_first, TokenSpan& span) {
  size_t before = spaces_before(name);
  if (keeps_first && before > 0) --before;
  span.begin = std::min(span.begin + before, span.end);
  span.end = std::max(span.end - std::min(spaces_after(name), span.end), span.begin);
}

}  // namespace

bool append_token_starts(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids, size_t offset,
                         std::vector<TokenStart>& starts) {
  // Ids are decoded in groups that hold whole characters, with the id before as context: a first id loses its space.
  size_t at = 0;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t context = begin > 0 ? 1 : 0;
    const size_t skipped = tokenizer.decode(ids.subspan(begin - context, context)).size();
    size_t end = begin, length = 0;
    TokenStart next{at};
    for (bool whole = false; !whole; ++end) {
      if (end == ids.size()) return false;
      starts.push_back({offset + next.at, next.in_character});
      const std::string decoded = tokenizer.decode(ids.subspan(begin - context, end + 1 - begin + context));
      if (decoded.size() < skipped) return false;
      const std::string_view own = std::string_view(decoded).substr(skipped);
      length = common_characters(own, text.substr(at));
      whole = length == own.size();
      // Only the first bytes of the next character may follow; anything else means that the ids are not those of the
      // text.
      if (!whole && own.substr(length).find_first_not_of(kReplacementCharacter) != own.npos) return false;
      next = {at + length, !whole};
    }
    at += length;
    begin = end;
  }
  return at == text.size();
}

std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids,
                                   std::span<const TokenStart> starts) {
  using enum Tokenizer::TrimmedSpaces;
  const Tokenizer::TrimmedSpaces trimmed = tokenizer.trimmed_spaces();
  std::vector<TokenSpan> spans;
  spans.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    TokenSpan span{starts[i].at, text.size()};
    if (i + 1 < starts.size()) {
      const auto& [at, in_character] = starts[i + 1];
      span.end = at + (in_character ? utf8_length(static_cast<unsigned char>(text[at])) : 0);
    }
    if (trimmed != none) {
      const bool keeps_first = trimmed == all_but_the_first && span.begin == 0;
      trim_spaces(tokenizer.token_name(ids[i]), keeps_first, span);
    }
    spans.push_back(span);
  }
  return spans;
}

void set_marked(std::string_view text, std::span<const jinja::Rendered::Mark> marks, std::span<const TokenSpan> spans,
                std::span<uint8_t> counts) {
  // As `transformers`: one pass over ids and marks, which marks that are not in order (of macros) rely on.
  size_t id = 0;
  for (const jinja::Rendered::Mark& mark : marks) {
    const size_t end = advance_characters(text, mark.begin, static_cast<int64_t>(mark.characters));
    for (; id < spans.size() && spans[id].begin < end; ++id) {
      if (spans[id].end > mark.begin) counts[id] = 1;
    }
  }
}

}  // namespace titan
