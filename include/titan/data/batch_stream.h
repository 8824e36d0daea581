// Batches for the trainer: this rank's share of the global sequence of chunks, prepared ahead on one background thread.
// Sample j of step s is chunk s·G + j, G = local · accumulation · dp; microbatch a of rank r holds
// j = a·local·dp + r·local … + local − 1. With BatchPlan::own_stream all chunks are this rank's. Knows no tensors: the
// caller wraps or copies the vectors. At the end: assemble_step, which cuts one step without a thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/data/chunk_stream.h"

namespace titan {

/// Labels with this value count nowhere: not in the loss, not in the number of valid tokens.
constexpr int64_t kIgnoredLabel = -100;

/// How the global batch is cut. All ranks pack the same sequence and keep their own samples of it, unless `own_stream`.
struct BatchPlan {
  int64_t sequence_length = 0;  ///< T
  int64_t local_batch = 1;      ///< samples of one microbatch on one rank
  int64_t accumulation = 1;     ///< microbatches per step
  int64_t dp_degree = 1;
  int64_t dp_rank = 0;
  /// The stream is this rank's own (data.split = "upstream"): all of its chunks are this rank's samples.
  bool own_stream = false;

  int64_t global_batch() const { return local_batch * accumulation * dp_degree; }
};

/// B samples of T tokens, row-major; vectors of B·T unless said otherwise.
struct MicroBatch {
  int64_t samples = 0;          ///< B
  int64_t sequence_length = 0;  ///< T
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;     ///< the next token of each position, or kIgnoredLabel
  std::vector<int64_t> positions;  ///< 0 … T−1, or from 0 within each document (BatchOptions::restart_positions)
  /// Per sample, ascending and beginning with 0: where a new document, or the rest of one begun earlier, starts.
  /// Attention under `block_causal` sees from the last bound at or before a position.
  std::vector<std::vector<int32_t>> document_bounds;
};

struct StepBatch {
  std::vector<MicroBatch> microbatches;  ///< `accumulation` of them
  int64_t first_chunk = 0;               ///< number in the stream of the first chunk
  int64_t samples = 0;       ///< real samples in the global batch: G, fewer only at the end of a finite source, where
                             ///< the rest are rows of ignored labels so that all ranks keep the same shapes
  int64_t valid_tokens = 0;  ///< labels that count, over the whole global batch
  DataCounters counters;     ///< up to and with this batch
  std::vector<std::string> notices;  ///< warnings to show: re-looping, skipped records
  StreamState state;                 ///< continue here after this batch
};

struct BatchOptions {
  std::string dataset = "text";  ///< for messages, as the next
  std::string section = "training";
  bool announces_passes = true;    ///< a notice at the end of each pass
  bool infinite = true;            ///< false: one pass, for validation
  bool restart_positions = false;  ///< block_causal: positions count from 0 within each document
  ChunkPacking packing = ChunkPacking::upstream;
  bool drops_long = false;  ///< see ChunkOptions
  /// The label of a document's last token, which is the next document's first one, does not count.
  bool labels_end_with_document = false;
  int64_t queue_depth = 4;                       ///< step batches kept ready
  std::chrono::duration<double> timeout{300.0};  ///< a longer wait for one batch is an error
};

class BatchStream {
 public:
  BatchStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer, const BatchPlan& plan,
              const BatchOptions& options);
  /// Of chunks that come from elsewhere, such as a mixture; `options` says nothing about packing then.
  BatchStream(std::unique_ptr<ChunkSource> chunks, const BatchPlan& plan, const BatchOptions& options);
  /// Ends the thread within milliseconds; one that hangs in a read is left behind and ends when the read returns.
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  /// The next step's batch; nothing when a finite source has run out. Rethrows what the thread threw;
  /// throws Error(bad_data) naming the file when the wait exceeds the timeout.
  std::optional<StepBatch> next();

  /// Takes back a batch that is done with, for the memory it is in.
  void recycle(StepBatch&& batch);

  /// The point after the batches handed out, however far the thread has run ahead; the same on every rank, unless
  /// each has its own stream.
  const StreamState& state() const { return state_; }

  /// Continues exactly at `state`; `{}` is the beginning. Throws Error(bad_data) when it is from another corpus.
  void restore(const StreamState& state);

  /// Seconds the last `next` waited, and all of them together.
  double last_wait_seconds() const { return last_wait_seconds_; }
  double total_wait_seconds() const { return total_wait_seconds_; }
  /// Batches that lie ready now.
  int64_t ready() const;
  /// Those that lay ready when the last `next` was called.
  int64_t ready_before() const { return ready_before_; }
  int64_t depth() const { return options_.queue_depth; }

 private:
  struct Worker;

  void start();

  BatchPlan plan_;
  BatchOptions options_;
  std::unique_ptr<Worker> worker_;
  StreamState state_;
  double last_wait_seconds_ = 0.0;
  double total_wait_seconds_ = 0.0;
  int64_t ready_before_ = 0;
};

/// What a stream of chunks needs of a batch stream's settings.
ChunkOptions chunk_options(const BatchPlan& plan, const BatchOptions& options);

// Cuts the global sequence of chunks into one rank's microbatches of one step. A pure function of the stream and the
// plan.

/// What a chunk's document bounds mean for its row; see BatchOptions.
struct RowOptions {
  bool restart_positions = false;
  bool labels_end_with_document = false;
};

/// Takes the next G chunks from `chunks` and keeps those of `plan.dp_rank` (of its own stream: only its own, all kept);
/// nothing when not one chunk is left. The step that a finite source cannot fill is padded with rows of ignored labels
/// (see StepBatch::samples). `used`: an earlier batch, for its memory.
std::optional<StepBatch> assemble_step(ChunkSource& chunks, const BatchPlan& plan, const RowOptions& options,
                                       StepBatch used = {});

}  // namespace titan
