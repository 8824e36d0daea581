#include "titan/data/find_position.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/text.h"

namespace titan {

FoundPosition find_position(DocumentSource& source, const Tokenizer& tokenizer, int64_t documents,
                            std::span<const int32_t> left) {
  // The documents that `left` came from: one for each BOS in it, and one more when it begins inside of one. Of no ids
  // left, the last document read, whose end is the place.
  const bool begins_inside = left.empty() || left.front() != tokenizer.bos_id();
  const int64_t whole = std::count(left.begin(), left.end(), tokenizer.bos_id());
  const int64_t first = documents - whole - (begins_inside ? 1 : 0);
  if (documents == 0 && left.empty()) return {StreamState(), {}};
  if (first < 0) return {{}, "the text had just begun anew, and what is left is of the pass before"};

  source.seek({});
  StreamState state;
  std::vector<int32_t> ids;
  Document document;
  for (int64_t i = 0; i < documents; ++i) {
    if (!source.next(document)) {
      return {{},
              fmt::format("the corpus holds {} documents, and {} had been read", with_thousands(i),
                          with_thousands(documents))};
    }
    if (i < first) continue;
    if (i == first) state.document = document.start;
    if (document.tokens) {
      document.tokens->append_to(ids);
    } else {
      tokenizer.encode_framed(document.text, true, true, ids);
    }
    if (i == first) state.token_offset = std::ssize(ids);  // its length, for now
  }
  const int64_t offset = std::ssize(ids) - std::ssize(left);
  const bool inside = offset >= 0 && offset <= state.token_offset;
  if (!inside || !std::equal(left.begin(), left.end(), ids.end() - std::ssize(left))) {
    return {{}, "the tokens left over are not those that this corpus and tokenizer give there"};
  }
  state.token_offset = offset;
  return {state, {}};
}

}  // namespace titan
