// Where another program's count of documents and leftover tokens lie in this program's stream.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "titan/data/chunk_source.h"
#include "titan/data/tokenizer.h"

namespace titan {

struct FoundPosition {
  std::optional<StreamState> state;
  std::string problem;  ///< without a state: why, as the end of a sentence
};

/// The point at which `documents` documents of `source`'s first pass have been read and `left`, the last of their ids
/// (each document's BOS, text, EOS), are still to be packed. Every id of `left` is compared with what the corpus gives:
/// a corpus or tokenizer that differs is found. Reads the pass from its beginning where it must.
FoundPosition find_position(DocumentSource& source, const Tokenizer& tokenizer, int64_t documents,
                            std::span<const int32_t> left);

}  // namespace titan
