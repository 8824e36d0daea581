// `titan_train data tokenize`: converts a corpus of text, or of ids from another package, to a .bin file of ids and its
// index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/corpus/document_source.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// Ids from another package: the known facts about their vocabulary.
struct GivenIds {
  int64_t vocabulary = 0;
  int32_t bos = Tokenizer::kNoId, eos = Tokenizer::kNoId;
  std::string maker;  ///< name of the package or tokenizer, for messages
};

struct Tokenization {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;
  std::optional<GivenIds> ids;             ///< instead of a tokenizer: `dataset.text_field` holds lists of ids
  std::filesystem::path output;            ///< must end in .bin
  int64_t threads = 0;                     ///< 0: one per processor
  bool overwrite = false;                  ///< replace existing output
  int64_t save_bytes = 64 << 20;           ///< bytes of ids between two resume points
  std::function<void()> on_saved = [] {};  ///< called after each resume point
};

/// Encodes the corpus on all cores into OUTPUT.part, periodically records progress, and at the end renames the file and
/// writes its index. After a kill, the next call resumes from the recorded progress; the resulting file is identical.
/// Prints a summary to `out`. Throws Error: bad_data if reading fails; bad_config if the output exists, belongs to
/// another corpus, is part of this one or is being written by another process; storage if it cannot be written.
void tokenize_corpus(const Tokenization& wanted, std::ostream& out);

}  // namespace titan
