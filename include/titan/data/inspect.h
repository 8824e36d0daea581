// What `titan_train data stats` and `peek` do: say what a corpus holds, in numbers and by example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

#include "titan/data/document_source.h"

namespace titan {

struct Inspection {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;  ///< empty: no tokens are counted or shown
  int64_t documents = 3;            ///< for show_documents
};

/// Reads the whole corpus with all cores: documents, bytes, tokens, how long documents are, what is wrong with records.
/// Throws Error(bad_data) as reading does.
void describe_corpus(const Inspection& wanted, std::ostream& out);

/// The beginning of the first documents, where they lie, and with a tokenizer their first 32 ids with the text of each.
void show_documents(const Inspection& wanted, std::ostream& out);

}  // namespace titan
