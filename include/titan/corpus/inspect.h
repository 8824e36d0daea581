// `titan_train data stats` and `peek`: print statistics and examples of a corpus.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "titan/corpus/document_source.h"

namespace titan {

struct Inspection {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;  ///< empty: do not count or show tokens
  std::string chat_template;        ///< for conversations; needs a tokenizer; empty: the records are texts
  int64_t documents = 3;            ///< for show_documents
};

/// Reads the whole corpus (text on all cores) and prints documents, bytes, tokens, labels (of conversations), document
/// lengths and problems of records. Throws Error(bad_data) if reading fails.
void describe_corpus(const Inspection& wanted, std::ostream& out);

/// Prints the start of the first documents and their positions; with a tokenizer also the first 32 ids, each with its
/// text. Prints conversations as encoded by the template; ids that are labels have a *.
void show_documents(const Inspection& wanted, std::ostream& out);

}  // namespace titan
