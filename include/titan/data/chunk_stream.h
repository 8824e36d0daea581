// The one global sequence of packed chunks that every layout shares: documents → tokens → chunks of T+1 tokens.
// Packing follows torchtitan.md section 6: BOS + document + EOS into a buffer, T+1 tokens out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/chunk_source.h"
#include "titan/data/document_source.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// How chunks follow each other in the stream of tokens.
enum class ChunkPacking {
  upstream,  ///< torchtitan's: T+1 tokens on, so that one token a chunk is never an input and one never a label
  lossless,  ///< T tokens on: every token is an input once and a label once
};

struct ChunkOptions {
  int64_t sequence_length = 0;  ///< T
  ChunkPacking packing = ChunkPacking::upstream;
  bool infinite = true;              ///< begin again at the end of the source
  int64_t chunks_needed = 1;         ///< a source whose whole pass gives fewer is an error
  std::string dataset = "stories";   ///< for messages
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

  bool read_document();
  void append_document(const Document& document);
  void finish_pass();
  void skip_to(int64_t token_offset);
  void take_source_counters();
  /// What has come to the corpus since `state`, in words; throws Error(bad_data) when `state` is none of it.
  std::string check_corpus(const StreamState& state) const;
  [[noreturn]] void fail_too_short() const;
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
