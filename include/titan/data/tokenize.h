// What `titan_train data tokenize` does: a text corpus becomes a .bin file of ids and its index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>

#include "titan/data/document_source.h"

namespace titan {

struct Tokenization {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;
  std::filesystem::path output;            ///< must end in .bin
  int64_t threads = 0;                     ///< 0: one per processor
  bool overwrite = false;                  ///< begin anew over what lies there
  int64_t save_bytes = 64 << 20;           ///< of ids between two points from which a killed run goes on
  std::function<void()> on_saved = [] {};  ///< after each of them
};

/// Encodes the corpus with all cores into OUTPUT.part, notes now and then how far it has come, and gives the file its
/// name and its index at the end. Called again after having been killed it goes on from the last note; the file is the
/// same bytes then. Says on `out` what was made. Throws Error: bad_data as reading does, bad_config when the output is
/// already there or is another corpus's, storage when it cannot be written.
void tokenize_corpus(const Tokenization& wanted, std::ostream& out);

}  // namespace titan
