// The one global sequence of chunks of T+1 tokens, wherever they come from, and a point in it.
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

#include "titan/data/document_source.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// A point in the global sequence, independent of ranks and batch sizes. The packer's remainder is named, not stored:
/// it begins `token_offset` tokens into the document at `document`, which is read and encoded again on restore.
struct StreamState {
  int64_t chunk = 0;                 ///< chunks handed out before this point
  int64_t epoch = 0;                 ///< passes over the source completed before `document`
  SourcePosition document;           ///< the document that the next token belongs to
  int64_t token_offset = 0;          ///< tokens of it (BOS included) already used; 1: a used conversation
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
  int64_t long_conversations = 0;  ///< cut or left out because they are longer than a sequence
};

struct Chunk {
  std::vector<int32_t> tokens;           ///< T+1: inputs are the first T, labels the last T
  std::vector<int32_t> document_starts;  ///< ascending indices in [0, T) of a document's first token
  bool ends_document = false;            ///< the last label, token T, is the first token of a document
  std::vector<uint8_t> counts;           ///< per token, whether it counts as a label; empty: all do
  /// The chunk begins in the middle of a document: index 0 is then not in `document_starts`.
  bool begins_inside_document() const { return document_starts.empty() || document_starts.front() != 0; }
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  /// The next chunk; false when a finite source has run out (a partial last chunk is dropped, of
  /// conversations it is padded).
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

// The one global sequence of packed chunks that every layout shares: documents → tokens → chunks of T+1 tokens.
// Packing follows torchtitan: BOS + document + EOS into a buffer, T+1 tokens out.

/// How chunks follow each other in the stream of tokens.
enum class ChunkPacking {
  upstream,  ///< torchtitan's: T+1 tokens on, so that one token a chunk is never an input and one never a label
  lossless,  ///< T tokens on: every token is an input once and a label once
  /// Whole conversations: one that does not fit into what is left of a sequence begins the next, and the rest is
  /// padding, which is a document of its own and counts nowhere.
  conversations,
};

struct ChunkOptions {
  int64_t sequence_length = 0;  ///< T
  ChunkPacking packing = ChunkPacking::upstream;
  bool drops_long = false;           ///< conversations of more than T+1 tokens are left out instead of cut
  bool infinite = true;              ///< begin again at the end of the source
  int64_t chunks_needed = 1;         ///< a source whose whole pass gives fewer is an error
  std::string dataset = "text";      ///< for messages
  std::string section = "training";  ///< of the options that messages name
  bool announces_passes = true;      ///< a notice at the end of each pass
};

class ChunkStream : public ChunkSource {
 public:
  ChunkStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer, ChunkOptions options);

  bool next(Chunk& chunk) override;
  StreamState state() const override;
  void restore(const StreamState& state) override;
  const DataCounters& counters() const override { return counters_; }
  std::vector<std::string> take_notices() override;
  std::string reading() const override { return source_->reading(); }

 private:
  struct Origin {  // a document in the buffer; the front one holds the token used last
    SourcePosition start;
    int64_t epoch;
    int64_t first_token;  // number of its BOS
  };

  bool packs_conversations() const { return options_.packing == ChunkPacking::conversations; }
  bool next_conversations(Chunk& chunk);
  bool fits(EncodedChat& chat, const SourcePosition& start);
  void move_on(int64_t tokens);
  bool read_document();
  void append_document(Document& document);
  void finish_pass();
  void skip_to(int64_t token_offset);
  void take_source_counters();
  /// What has come to the corpus since `state`, in words; throws Error(bad_data) when `state` is none of it.
  std::string check_corpus(const StreamState& state) const;
  bool is_too_short() const;
  [[noreturn]] void fail_too_short() const;
  /// Sequences that the current pass has filled, or begun to.
  int64_t pass_chunks() const { return chunk_ - pass_chunk_ + (buffer_.size() > used_ ? 1 : 0); }
  /// Tokens that the next chunk begins after this one's beginning, and those of `chunks` of them.
  int64_t advance() const { return options_.sequence_length + (options_.packing == ChunkPacking::upstream ? 1 : 0); }
  int64_t tokens_of(int64_t chunks) const { return (chunks - 1) * advance() + options_.sequence_length + 1; }
  int64_t position() const { return erased_ + static_cast<int64_t>(used_); }

  std::unique_ptr<DocumentSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChunkOptions options_;
  uint64_t fingerprint_ = 0;
  CorpusRecord corpus_;

  // Tokens are numbered from the last restore on: buffer_[i] is number erased_ + i, and the first `used_` are spent.
  std::vector<int32_t> buffer_;
  std::vector<uint8_t> counts_;  // of conversations: as long as buffer_
  size_t used_ = 0;
  int64_t erased_ = 0;
  std::deque<Origin> origins_;  // ascending

  int64_t chunk_ = 0;
  int64_t epoch_ = 0;
  int64_t pass_tokens_ = 0;    // of the current pass over the source
  int64_t pass_chunk_ = 0;     // the chunk in which that pass began
  bool pass_is_whole_ = true;  // that pass began at the first document
  bool exhausted_ = false;
  DataCounters counters_;
  SourceCounters source_before_;  // at the last restore
  std::vector<std::string> notices_;
};

// Where another program's count of documents and leftover tokens are in this program's stream.

struct FoundPosition {
  std::optional<StreamState> state;
  std::string problem;  ///< without a state: why, as the end of a sentence
};

/// The point at which `documents` documents of `source`'s first pass have been read and `left`, the last of their ids
/// (each document's BOS, text, EOS), are still to be packed. Every id of `left` is compared with what the corpus gives:
/// a corpus or tokenizer that differs is found. Reads the pass from its beginning where it must.
FoundPosition find_position(DocumentSource& source, const Tokenizer& tokenizer, int64_t documents,
                            std::span<const int32_t> left);

// A mixture: several streams of chunks as one, by weights. The schedule is exact and in integers: after n chunks each
// stream has given its share of n to within one chunk, and the next stream is a function of the counts so far.

/// Weights as coprime integers. Whole numbers count as parts of their sum; fractions must sum to 1 (to a millionth).
/// Throws Error(bad_config) with the sum: what is wrong with them.
std::vector<int64_t> integer_weights(const std::vector<double>& weights);

/// Which stream gives the next chunk when stream i has given `given[i]` so far and all weights are above 0: of those
/// whose share of the next total is not yet exceeded, the one that must give soonest (Still, "A class of new methods
/// for congressional apportionment", 1979: the quota method).
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
