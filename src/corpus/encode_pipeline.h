// Encodes a whole text corpus on all cores and delivers it in order: one thread reads and decompresses, several parse
// records and encode, the calling thread consumes. Data in flight is bounded in bytes, independent of the corpus size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "file_source.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// Consecutive documents of the corpus.
struct EncodedDocuments {
  struct Document {
    SourcePosition start;
    RecordText read;          ///< without its text; `text_bytes` keeps the length
    int64_t text_bytes = 0;   ///< UTF-8, after repair
    int64_t first_token = 0;  ///< in `ids`
    int64_t tokens = 0;       ///< 0 for a bad record
  };
  std::vector<Document> documents;
  std::vector<int32_t> ids;  ///< of all documents, with BOS and EOS; empty without a tokenizer
  SourcePosition after;      ///< where the next document begins
};

/// Calls `take` with all documents from `source`'s position to the end of its pass. `tokenizer` may be null: documents
/// are then only read. If the tokenizer cannot encode text, the text field is a list of ids (see read_ids). A thread's
/// exception is rethrown here after all earlier documents have been taken.
void encode_all(FileSource& source, const Tokenizer* tokenizer, int64_t threads,
                const std::function<void(const EncodedDocuments&)>& take);

/// One per processor that this process may use, at most OMP_NUM_THREADS.
int64_t default_encode_threads();

}  // namespace titan
