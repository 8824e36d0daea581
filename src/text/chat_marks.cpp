#include "chat_marks.h"

#include <algorithm>

#include "titan/text/utf8.h"

namespace titan {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the whole characters at the start of `decoded` that `text` begins with.
size_t common_characters(std::string_view decoded, std::string_view text) {
  size_t same = static_cast<size_t>(std::mismatch(decoded.begin(), decoded.end(), text.begin(), text.end()).first -
                                    decoded.begin());
  while (same > 0 && same < text.size() && (static_cast<unsigned char>(text[same]) & 0xC0) == 0x80) --same;
  return same;
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
      // What follows the whole characters may only be the first bytes of the next one.
      if (!whole && own.substr(length).find_first_not_of(kReplacement) != own.npos) return false;
      next = {at + length, !whole};
    }
    at += length;
    begin = end;
  }
  return at == text.size();
}

void set_marked(std::string_view text, std::span<const jinja::Rendered::Mark> marks, std::span<const TokenStart> starts,
                std::span<uint8_t> counts) {
  // As `transformers`: one pass over ids and marks, which marks that are not in order (of macros) rely on.
  const auto end_of = [&](size_t i) {
    if (i + 1 == starts.size()) return text.size();
    const auto& [at, in_character] = starts[i + 1];
    return at + (in_character ? utf8_length(static_cast<unsigned char>(text[at])) : 0);
  };
  size_t id = 0;
  for (const auto& [begin, characters] : marks) {
    const size_t end = advance_characters(text, begin, static_cast<int64_t>(characters));
    for (; id < starts.size() && starts[id].at < end; ++id) {
      if (end_of(id) > begin) counts[id] = 1;
    }
  }
}

}  // namespace titan
