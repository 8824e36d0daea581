// The vocabulary of a corpus: its tokenizer or, for ids alone, what their file says of it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>

#include "titan/text/tokenizer.h"

namespace titan {

/// The tokenizer at `path` (open_tokenizer); for a .bin file of ids with its index, the vocabulary that the index names
/// (RecordedVocabulary), which cannot encode text. Throws Error(bad_data) with the problem, its place and the remedy.
std::shared_ptr<const Tokenizer> open_vocabulary(const std::filesystem::path& path);
/// The same, with a line to `warnings` for each disagreement of its files.
std::shared_ptr<const Tokenizer> open_vocabulary(const std::filesystem::path& path, std::ostream& warnings);

}  // namespace titan
