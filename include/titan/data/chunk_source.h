// The one global sequence of chunks of T+1 tokens, wherever they come from, and a point in it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "titan/data/document_source.h"

namespace titan {

/// A point in the global sequence, independent of ranks and batch sizes. The packer's remainder is named, not stored:
/// it begins `token_offset` tokens into the document at `document`, which is read and encoded again on restore.
struct StreamState {
  int64_t chunk = 0;                 ///< chunks handed out before this point
  int64_t epoch = 0;                 ///< passes over the source completed before `document`
  SourcePosition document;           ///< the document that the next token belongs to
  int64_t token_offset = 0;          ///< tokens of it (BOS included) already used
  uint64_t fingerprint = 0;          ///< of source and tokenizer; 0 fits all
  std::vector<StreamState> sources;  ///< of a mixture: the point in each; `document` means nothing then
  CorpusRecord corpus = {};          ///< no files: nothing is known but the fingerprint

  bool operator==(const StreamState&) const = default;
};

nlohmann::json to_json(const StreamState& state);
/// Throws Error(bad_data) naming the missing or mistyped field.
StreamState stream_state_from_json(const nlohmann::json& json);

/// Sums since the stream was opened or restored.
struct DataCounters {
  int64_t documents = 0;
  int64_t tokens = 0;  ///< read from documents, BOS and EOS included
  int64_t bad_records = 0;
  int64_t invalid_utf8 = 0;
  int64_t re_loops = 0;
};

struct Chunk {
  std::vector<int32_t> tokens;           ///< T+1: inputs are the first T, labels the last T
  std::vector<int32_t> document_starts;  ///< ascending indices in [0, T) where a document's first token lies
  bool ends_document = false;            ///< the last label, token T, is the first token of a document
  /// The chunk begins in the middle of a document: index 0 is then not in `document_starts`.
  bool begins_inside_document() const { return document_starts.empty() || document_starts.front() != 0; }
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  /// The next chunk; false when a finite source has run out (a partial last chunk is dropped).
  /// Throws Error(bad_data) when a source is empty or too short.
  virtual bool next(Chunk& chunk) = 0;

  /// The point after the last chunk handed out.
  virtual StreamState state() const = 0;

  /// Continues exactly at `state`. Throws Error(bad_data) when it was saved from another corpus, unless that has grown
  /// at its end, which is a notice.
  virtual void restore(const StreamState& state) = 0;

  virtual const DataCounters& counters() const = 0;
  virtual std::vector<std::string> take_notices() = 0;

  /// See DocumentSource::reading.
  virtual std::string reading() const = 0;
};

}  // namespace titan
