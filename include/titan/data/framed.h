// A document's ids as every stream of tokens holds them: begin-of-text, text, end-of-text.
#pragma once

#include <string_view>
#include <vector>

#include "titan/data/tokenizer.h"

namespace titan {

inline void append_framed(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>& ids) {
  ids.push_back(tokenizer.bos_id());
  tokenizer.encode_append(text, ids);
  ids.push_back(tokenizer.eos_id());
}

}  // namespace titan
