// Batches for the trainer: this rank's share of the global sequence of chunks, prefetched by one background thread.
// Sample j of step s is chunk s·G + j, G = local · accumulation · dp; microbatch a of rank r has samples j = a·local·dp
// + r·local … + local − 1. With BatchPlan::own_stream all chunks belong to this rank. Knows no tensors: the caller
// wraps or copies the vectors. assemble_step, at the end, builds one step without a thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/stream/chunk_stream.h"

namespace titan {

/// Label that is ignored by the loss and by the number of valid tokens.
constexpr int64_t kIgnoredLabel = -100;

/// How the global batch is split. All ranks pack the same sequence and keep their own samples, unless `own_stream`.
struct BatchPlan {
  int64_t sequence_length = 0;  ///< T
  int64_t local_batch = 1;      ///< samples of one microbatch on one rank
  int64_t accumulation = 1;     ///< microbatches per step
  int64_t dp_degree = 1;
  int64_t dp_rank = 0;
  /// The stream belongs to this rank (data.split = "upstream"): all of its chunks are this rank's samples.
  bool own_stream = false;

  int64_t global_batch() const { return local_batch * accumulation * dp_degree; }
};

/// B samples of T tokens, row-major; vectors have B·T elements unless noted.
struct MicroBatch {
  int64_t samples = 0;          ///< B
  int64_t sequence_length = 0;  ///< T
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;     ///< the next token of each position, or kIgnoredLabel
  std::vector<int64_t> positions;  ///< 0 … T−1, or restarting at 0 in each document (RowOptions::restart_positions)
  /// Per sample, ascending from 0: positions where a document, or the rest of an earlier one, starts. With
  /// `block_causal`, a query attends from the last bound at or before its position.
  std::vector<std::vector<int32_t>> document_bounds;
};

struct StepBatch {
  std::vector<MicroBatch> microbatches;  ///< `accumulation` of them
  int64_t samples = 0;       ///< real samples in the global batch: G, or fewer at the end of a finite source, where
                             ///< rows of ignored labels keep the shapes equal on all ranks
  int64_t valid_tokens = 0;  ///< labels that are not ignored, over the whole global batch
  DataCounters counters;     ///< up to and including this batch
  std::vector<std::string> notices;  ///< warnings to show: re-looping, skipped records
  StreamState state;                 ///< state to resume from after this batch
};

/// How a chunk's document bounds affect its row.
struct RowOptions {
  bool restart_positions = false;  ///< block_causal: positions restart at 0 in each document
  /// Ignore the label at a document's last token, which is the next document's first token.
  bool labels_end_with_document = false;
};

struct BatchOptions {
  ChunkOptions chunks = {};  ///< its length and number are the batch's (chunk_options)
  RowOptions rows = {};
  int64_t queue_depth = 4;                       ///< step batches to prefetch
  std::chrono::duration<double> timeout{300.0};  ///< waiting longer for one batch is an error
};

class BatchStream {
 public:
  BatchStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer, const BatchPlan& plan,
              const BatchOptions& options);
  /// From a given source of chunks, such as a mixture; `options.chunks` is then only used in messages.
  BatchStream(std::unique_ptr<ChunkSource> chunks, const BatchPlan& plan, const BatchOptions& options);
  /// Stops the thread. If it is blocked in a read, waits 2 s, then detaches it; it ends when the read returns.
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  /// The next step's batch; nothing at the end of a finite source. Rethrows the thread's exceptions; throws
  /// Error(bad_data) with the file name when the wait exceeds the timeout. `stops` is asked during a long wait:
  /// nothing, too, if it says so.
  std::optional<StepBatch> next(const std::function<bool()>& stops = {});

  /// Returns a used batch, so that its memory is reused.
  void recycle(StepBatch&& batch);

  /// The position after the batches returned so far, independent of prefetching; the same on every rank, unless each
  /// has its own stream.
  const StreamState& state() const { return state_; }

  /// A position of this stream in words (ChunkSource::place_of).
  std::string place_of(const StreamState& state) const;

  /// Resumes exactly at `state`; `{}` is the beginning. Waits for the batch that is being read. Throws Error(bad_data)
  /// if `state` is from another corpus, or if that wait exceeds the timeout.
  void restore(const StreamState& state);

  /// Seconds that the last `next` waited.
  double last_wait_seconds() const { return last_wait_seconds_; }
  /// Number of prefetched batches.
  int64_t ready() const;
  /// Number of prefetched batches when `next` was last called.
  int64_t ready_before() const { return ready_before_; }
  int64_t depth() const { return options_.queue_depth; }

 private:
  struct Worker;

  void start();
  [[noreturn]] void refuse_stalled() const;

  BatchPlan plan_;
  BatchOptions options_;
  std::unique_ptr<Worker> worker_;
  StreamState state_;
  double last_wait_seconds_ = 0.0;
  int64_t ready_before_ = 0;
};

/// The chunk stream's options for these batch settings.
ChunkOptions chunk_options(const BatchPlan& plan, const BatchOptions& options);

// Splits the global sequence of chunks into one rank's microbatches of one step. A pure function of stream and plan.

/// Reads the next G chunks from `chunks` and keeps those of `plan.dp_rank` (with own_stream: reads only this rank's and
/// keeps all); nothing if no chunk is left. The last step of a finite source is padded with rows of ignored labels (see
/// StepBatch::samples). `used`: an earlier batch whose memory is reused.
std::optional<StepBatch> assemble_step(ChunkSource& chunks, const BatchPlan& plan, const RowOptions& options,
                                       StepBatch used = {});

}  // namespace titan
