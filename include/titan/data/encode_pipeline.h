// All of a text corpus, encoded on all cores, handed over in order: one thread reads and unpacks, several read records
// and encode, the caller's takes. What is under way is bounded in bytes, however large the corpus.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "titan/data/text_files.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// Some documents that lie one after the other in the corpus.
struct EncodedDocuments {
  struct Document {
    SourcePosition start;
    RecordText read;          ///< its text is gone: `text_bytes` is left of it
    int64_t text_bytes = 0;   ///< UTF-8, once it is repaired
    int64_t first_token = 0;  ///< in `ids`
    int64_t tokens = 0;       ///< 0 for a bad record
  };
  std::vector<Document> documents;
  std::vector<int32_t> ids;  ///< of all of them, with what begins and ends each; none without a tokenizer
  SourcePosition after;      ///< where the next document begins
};

/// Calls `take` with everything from `source`'s position to the end of its pass. `tokenizer` may be null: documents are
/// then only read. With one that reads no text, `text_field` is a list of ids (see read_ids). What a thread throws is
/// rethrown here once all that came before it has been taken.
void encode_all(TextFileSource& source, const std::string& text_field, const Tokenizer* tokenizer, int64_t threads,
                const std::function<void(const EncodedDocuments&)>& take);

/// As many threads as this process has processors.
int64_t default_encode_threads();

}  // namespace titan
