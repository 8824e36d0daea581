// What `titan_train data tokenize` does: a corpus of text, or of ids that another package made, becomes a .bin file of
// ids and its index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include "titan/data/document_source.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// Ids that another package made: their vocabulary, as far as it has to be known.
struct GivenIds {
  int64_t vocabulary = 0;
  int32_t bos = Tokenizer::kNoId, eos = Tokenizer::kNoId;
  std::string maker;  ///< whose ids they are, for people
};

struct Tokenization {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;
  std::optional<GivenIds> ids;             ///< instead of a tokenizer: `dataset.text_field` holds lists of ids
  std::filesystem::path output;            ///< must end in .bin
  int64_t threads = 0;                     ///< 0: one per processor
  bool overwrite = false;                  ///< begin anew over what lies there
  int64_t save_bytes = 64 << 20;           ///< of ids between two points from which a killed run goes on
  std::function<void()> on_saved = [] {};  ///< after each of them
};

/// Encodes the corpus with all cores into OUTPUT.part, notes now and then how far it has come, and gives the file its
/// name and its index at the end. Called again after having been killed it goes on from the last note; the file is the
/// same bytes then. Says on `out` what was made. Throws Error: bad_data as reading does, bad_config when the output is
/// already there, is another corpus's, falls into this one or is being written by another process, storage when it
/// cannot be written.
void tokenize_corpus(const Tokenization& wanted, std::ostream& out);

}  // namespace titan
