// The global sequence of chunks of T+1 tokens, from any source, and a position in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/corpus/document_source.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// A position in the global sequence, independent of ranks and batch sizes. Stores a reference to the packer's buffer,
/// not its tokens: it starts `token_offset` tokens into `document`, which is read and encoded again on restore.
struct StreamState {
  int64_t chunk = 0;        ///< chunks returned before this position
  int64_t epoch = 0;        ///< passes over the source completed before `document`
  SourcePosition document;  ///< the document that the next token belongs to
  /// Number of its tokens (BOS included) that earlier chunks used. For a conversation: 1 if it was used.
  int64_t token_offset = 0;
  uint64_t fingerprint = 0;          ///< of source and tokenizer; 0 fits every source and tokenizer
  std::vector<StreamState> sources;  ///< of a mixture: the state of each source; `document` is then unused
  CorpusRecord corpus = {};          ///< without files if only the fingerprint is known

  bool operator==(const StreamState&) const = default;
};

nlohmann::json to_json(const StreamState& state);
/// Throws Error(bad_data) naming the missing or mistyped field.
StreamState stream_state_from_json(const nlohmann::json& json);

/// Totals since the stream was opened or restored. All but the first two count what comes up to the document of the
/// last used token: what was read ahead of it is read, and counted, again after a resume.
struct DataCounters {
  int64_t documents = 0;
  int64_t tokens = 0;  ///< read from documents, BOS and EOS included
  int64_t bad_records = 0;
  int64_t invalid_utf8 = 0;
  int64_t re_loops = 0;
  int64_t long_conversations = 0;  ///< truncated or dropped because longer than a sequence

  DataCounters& operator+=(const DataCounters& other);
};

struct Chunk {
  std::vector<int32_t> tokens;           ///< T+1: inputs are the first T, labels the last T
  std::vector<int32_t> document_starts;  ///< ascending indices in [0, T) of documents' first tokens
  bool ends_document = false;            ///< the last label, token T, is the first token of a document
  std::vector<uint8_t> counts;           ///< label mask, per token; empty: all are labels
  /// The chunk starts in the middle of a document: index 0 is then not in `document_starts`.
  bool begins_inside_document() const { return document_starts.empty() || document_starts.front() != 0; }
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  /// Fills `chunk` with the next chunk. Returns false at the end of a finite source; a partial last chunk is dropped,
  /// or padded if it holds conversations. Throws Error(bad_data) if a source is empty or too short.
  virtual bool next(Chunk& chunk) = 0;

  /// As `next`, for a chunk that another rank trains on: of `chunk` only what says which labels count is valid.
  virtual bool skip(Chunk& chunk) { return next(chunk); }

  /// The position after the last chunk returned.
  virtual StreamState state() const = 0;

  /// Resumes exactly at `state`. Throws Error(bad_data) if it was saved from another corpus, or a shorter one.
  virtual void restore(const StreamState& state) = 0;

  virtual const DataCounters& counters() const = 0;
  virtual std::vector<std::string> take_notices() = 0;

  /// See DocumentSource::reading.
  virtual std::string reading() const = 0;

  /// A position of this source in words, for messages: "token 5 of document 12 (corpus.jsonl:13)". May be called while
  /// another thread is inside `next`.
  virtual std::string place_of(const StreamState& state) const;
};

/// What a saved position must fit.
struct StreamIdentity {
  const DocumentSource& source;
  const Tokenizer& tokenizer;
  uint64_t fingerprint;
  const CorpusRecord& corpus;
  const std::string& dataset;  ///< for messages
  /// What the error says, after "corpus NAME: ", if the saved order is another one; empty: it names both orders.
  std::string other_order = {};
};

/// Throws Error(bad_data) if `state` was saved from another corpus, tokenizer or order.
void check_saved_corpus(const StreamState& state, const StreamIdentity& now);

// The global sequence of packed chunks that every layout shares: documents → tokens → chunks of T+1 tokens. Packing
// follows torchtitan: append BOS + document + EOS to a buffer, remove T+1 tokens.

/// How far consecutive chunks are apart in the token stream.
enum class ChunkPacking {
  upstream,  ///< torchtitan's stride T+1: one token per chunk is never an input and one is never a label
  lossless,  ///< stride T: every token is an input once and a label once
  /// Whole conversations: one that does not fit in the rest of a sequence starts the next. The rest is padded: the
  /// padding is a document of its own with ignored labels.
  conversations,
};

struct ChunkOptions {
  int64_t sequence_length = 0;  ///< T
  ChunkPacking packing = ChunkPacking::upstream;
  bool drops_long = false;           ///< drop conversations of more than T+1 tokens instead of truncating
  bool infinite = true;              ///< start over at the end of the source
  int64_t chunks_needed = 1;         ///< a pass over the whole source that gives fewer is an error
  std::string dataset = "text";      ///< for messages
  std::string section = "training";  ///< config section of the options in messages
  bool announces_passes = true;      ///< add a notice at the end of each pass
};

class ChunkStream : public ChunkSource {
 public:
  ChunkStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer, ChunkOptions options);

  bool next(Chunk& chunk) override;
  StreamState state() const override;
  void restore(const StreamState& state) override;
  const DataCounters& counters() const override { return used_counters_; }
  std::vector<std::string> take_notices() override;
  std::string reading() const override { return source_->reading(); }
  std::string place_of(const StreamState& state) const override;

 private:
  struct Origin {  // a document in the buffer; the front one holds the last used token
    SourcePosition start;
    int64_t epoch;
    int64_t first_token;         // index of its BOS
    DataCounters counters = {};  // when it had been read
  };

  bool packs_conversations() const { return options_.packing == ChunkPacking::conversations; }
  bool next_packed(Chunk& chunk);
  bool next_conversations(Chunk& chunk);
  bool fits(EncodedChat& chat, const SourcePosition& start);
  void move_on(int64_t tokens);
  bool read_document();
  void append_document(Document& document);
  void finish_pass();
  void skip_to(int64_t token_offset);
  void take_source_counters();
  void take_used_counters();
  bool is_too_short() const;
  [[noreturn]] void fail_too_short() const;
  /// Sequences filled, or partly filled, by the current pass.
  int64_t pass_chunks() const { return chunk_ - pass_chunk_ + (buffer_.size() > used_ ? 1 : 0); }
  /// The stride between chunks, and the number of tokens that `chunks` chunks need.
  int64_t advance() const { return options_.sequence_length + (options_.packing == ChunkPacking::upstream ? 1 : 0); }
  int64_t tokens_of(int64_t chunks) const { return (chunks - 1) * advance() + options_.sequence_length + 1; }
  int64_t position() const { return erased_ + static_cast<int64_t>(used_); }

  std::unique_ptr<DocumentSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChunkOptions options_;
  uint64_t fingerprint_ = 0;
  CorpusRecord corpus_;

  // Tokens are numbered from the last restore: buffer_[i] has number erased_ + i; the first `used_` are used.
  std::vector<int32_t> buffer_;
  std::vector<uint8_t> counts_;  // label mask of conversations, parallel to buffer_
  size_t used_ = 0;
  int64_t erased_ = 0;
  std::deque<Origin> origins_;  // ascending

  int64_t chunk_ = 0;
  int64_t epoch_ = 0;
  int64_t pass_tokens_ = 0;    // of the current pass over the source
  int64_t pass_chunk_ = 0;     // the chunk in which the current pass began
  bool pass_is_whole_ = true;  // the current pass began at the first document
  bool exhausted_ = false;
  DataCounters counters_;         // of all that was read
  DataCounters used_counters_;    // for counters()
  SourceCounters source_before_;  // at the last restore
  std::vector<std::string> notices_;
};

// Converts another program's position (documents read, tokens left) to a position in this program's stream.

struct FoundPosition {
  std::optional<StreamState> state;
  std::string problem;  ///< why there is no state, as the end of a sentence
};

/// The position where `documents` documents of `source`'s first pass have been read and `left`, the last of their ids
/// (BOS, text, EOS per document), are still to be packed. Compares `left` with the corpus, id by id, to detect a
/// different corpus or tokenizer. Reads the pass from its beginning if necessary.
FoundPosition find_position(DocumentSource& source, const Tokenizer& tokenizer, int64_t documents,
                            std::span<const int32_t> left);

// A mixture: a weighted interleaving of chunk streams. The schedule is exact integer arithmetic: after n chunks each
// stream's count is within one chunk of its share, and the next stream is a function of the counts.

/// Weights as coprime integers. Whole numbers are relative to their sum; fractions must sum to 1 (within 1e-6). Throws
/// Error(bad_config) with the sum and the problem.
std::vector<int64_t> integer_weights(const std::vector<double>& weights);

/// The stream for the next chunk if stream i has given `given[i]` chunks so far and all weights are above 0: of the
/// streams that one more chunk keeps within their quota, the one with the earliest deadline (Still, "A class of new
/// methods for congressional apportionment", 1979: the quota method).
size_t next_in_mixture(const std::vector<int64_t>& weights, const std::vector<int64_t>& given);

class ChunkMixture : public ChunkSource {
 public:
  ChunkMixture(std::vector<std::unique_ptr<ChunkSource>> streams, std::vector<int64_t> weights);

  bool next(Chunk& chunk) override;
  StreamState state() const override;
  void restore(const StreamState& state) override;
  const DataCounters& counters() const override { return counters_; }
  std::vector<std::string> take_notices() override;
  std::string reading() const override;

 private:
  void take_counters();

  std::vector<std::unique_ptr<ChunkSource>> streams_;
  std::vector<int64_t> weights_;
  std::vector<int64_t> given_;
  std::atomic<size_t> current_{0};
  DataCounters counters_;
};

}  // namespace titan
