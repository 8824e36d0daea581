// `titan_train data info`, `stats` and `peek`: print what a corpus is, statistics and examples of it.
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

/// Prints kind, files and sizes of a corpus; of ids also their type, how many there are, and the largest id of a
/// sample. Reads no more of it than a run does when it starts.
void describe_files(const Inspection& wanted, std::ostream& out);

/// Reads the whole corpus (text on all cores) and prints documents, bytes, tokens, labels (of conversations), document
/// lengths and problems of records. With a tokenizer, compares every id with its vocabulary. Throws Error(bad_data) if
/// reading fails, and, after the statistics, for ids that the tokenizer does not have.
void describe_corpus(const Inspection& wanted, std::ostream& out);

/// Prints the start of the first documents and their positions; with a tokenizer also the first 32 ids, each with its
/// text. Prints conversations as encoded by the template; ids that are labels have a *.
void show_documents(const Inspection& wanted, std::ostream& out);

}  // namespace titan
