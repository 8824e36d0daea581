// The one global sequence of packed chunks that every layout shares: documents → tokens → chunks of T+1 tokens.
// Packing follows torchtitan.md section 6: BOS + document + EOS into a buffer, T+1 tokens out, none used twice.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/document_source.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// A point in the global sequence, independent of ranks and batch sizes. The packer's remainder is named, not stored:
/// it begins `token_offset` tokens into the document at `document`, which is read and encoded again on restore.
struct StreamState {
  int64_t chunk = 0;         ///< chunks handed out before this point
  int64_t epoch = 0;         ///< passes over the source completed before `document`
  SourcePosition document;   ///< the document that the next token belongs to
  int64_t token_offset = 0;  ///< tokens of it (BOS included) already used
  uint64_t fingerprint = 0;  ///< of source and tokenizer; 0 fits all

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
  /// The chunk begins in the middle of a document: index 0 is then not in `document_starts`.
  bool begins_inside_document() const { return document_starts.empty() || document_starts.front() != 0; }
};

struct ChunkOptions {
  int64_t sequence_length = 0;      ///< T
  bool infinite = true;             ///< begin again at the end of the source
  int64_t chunks_needed = 1;        ///< a source whose whole pass gives fewer is an error
  std::string dataset = "stories";  ///< for messages
};

class ChunkStream {
 public:
  ChunkStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer, ChunkOptions options);

  /// The next chunk; false when a finite source has run out (a partial last chunk is dropped).
  /// Throws Error(bad_data) when the source is empty or too short.
  bool next(Chunk& chunk);

  /// The point after the last chunk handed out.
  StreamState state() const;

  /// Continues exactly at `state`. Throws Error(bad_data) when it was saved from another corpus.
  void restore(const StreamState& state);

  const DataCounters& counters() const { return counters_; }
  std::vector<std::string> take_notices();

  /// See DocumentSource::reading.
  std::string reading() const { return source_->reading(); }

 private:
  struct Origin {  // a document in the buffer; the front one holds the token used last
    SourcePosition start;
    int64_t epoch;
    int64_t first_token;  // number of its BOS
  };

  bool read_document();
  void append_document(const Document& document);
  void finish_pass();
  void skip_to(int64_t token_offset);
  void take_source_counters();
  [[noreturn]] void fail_too_short() const;
  int64_t position() const { return erased_ + static_cast<int64_t>(used_); }

  std::unique_ptr<DocumentSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChunkOptions options_;
  uint64_t fingerprint_ = 0;

  // Tokens are numbered from the last restore on: buffer_[i] is number erased_ + i, and the first `used_` are spent.
  std::vector<int32_t> buffer_;
  size_t used_ = 0;
  int64_t erased_ = 0;
  std::deque<Origin> origins_;  // ascending

  int64_t chunk_ = 0;
  int64_t epoch_ = 0;
  int64_t pass_tokens_ = 0;    // of the current pass over the source
  bool pass_is_whole_ = true;  // that pass began at the first document
  bool exhausted_ = false;
  DataCounters counters_;
  SourceCounters source_before_;  // at the last restore
  std::vector<std::string> notices_;
};

}  // namespace titan
