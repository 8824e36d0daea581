#include "titan/stream/batch_stream.h"

#include <fmt/format.h>
#include <algorithm>
#include <mutex>
#include <numeric>

#include "prefetch_thread.h"
#include "titan/base/error.h"
#include "titan/corpus/widen.h"

namespace titan {
namespace {

void check(const BatchPlan& plan, const BatchOptions& options) {
  TITAN_CHECK(plan.sequence_length > 0, plan.sequence_length);
  TITAN_CHECK(plan.local_batch > 0 && plan.accumulation > 0, plan.local_batch, plan.accumulation);
  TITAN_CHECK(plan.dp_rank >= 0 && plan.dp_rank < plan.dp_degree, plan.dp_rank, plan.dp_degree);
  TITAN_CHECK(options.queue_depth > 0, options.queue_depth);
}

/// Used batches, kept to reuse their memory.
class Returned {
 public:
  void put(StepBatch&& batch) {
    std::lock_guard lock(mutex_);
    if (batches_.size() < kMost) batches_.push_back(std::move(batch));
  }
  StepBatch take() {
    std::lock_guard lock(mutex_);
    if (batches_.empty()) return {};
    StepBatch batch = std::move(batches_.back());
    batches_.pop_back();
    return batch;
  }

 private:
  // The trainer holds one batch and gives back the one before; more would be memory that waits for nothing.
  static constexpr size_t kMost = 2;
  std::mutex mutex_;
  std::vector<StepBatch> batches_;
};

}  // namespace

ChunkOptions chunk_options(const BatchPlan& plan, const BatchOptions& options) {
  ChunkOptions chunks = options.chunks;
  chunks.sequence_length = plan.sequence_length;
  const int64_t of_a_step = plan.own_stream ? plan.local_batch * plan.accumulation : plan.global_batch();
  chunks.chunks_needed = chunks.infinite ? of_a_step : 1;
  return chunks;
}

struct BatchStream::Worker {
  // The thread shares ownership of the chunks: see PrefetchThread on detached threads.
  std::shared_ptr<ChunkSource> chunks;
  std::shared_ptr<Returned> returned = std::make_shared<Returned>();
  std::unique_ptr<PrefetchThread<StepBatch>> thread;
};

BatchStream::BatchStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer,
                         const BatchPlan& plan, const BatchOptions& options)
    : BatchStream((check(plan, options), std::make_unique<ChunkStream>(std::move(source), std::move(tokenizer),
                                                                       chunk_options(plan, options))),
                  plan, options) {}

BatchStream::BatchStream(std::unique_ptr<ChunkSource> chunks, const BatchPlan& plan, const BatchOptions& options)
    : plan_(plan), options_(options), worker_(std::make_unique<Worker>()) {
  check(plan, options);
  worker_->chunks = std::move(chunks);
  state_ = worker_->chunks->state();
  start();
}

BatchStream::~BatchStream() = default;

void BatchStream::start() {
  auto produce = [chunks = worker_->chunks, returned = worker_->returned, plan = plan_, rows = options_.rows] {
    return assemble_step(*chunks, plan, rows, returned->take());
  };
  worker_->thread = std::make_unique<PrefetchThread<StepBatch>>(options_.queue_depth, std::move(produce));
}

std::optional<StepBatch> BatchStream::next(const std::function<bool()>& stops) {
  using Thread = PrefetchThread<StepBatch>;
  using Seconds = std::chrono::duration<double>;
  const Seconds slice(stops ? 0.1 : options_.timeout.count());
  auto began = std::chrono::steady_clock::now();
  ready_before_ = ready();
  last_wait_seconds_ = 0;
  std::optional<StepBatch> batch;
  Thread::Outcome outcome{};
  bool stopped = false;
  do {
    outcome = worker_->thread->take(batch, std::min(slice, options_.timeout - Seconds(last_wait_seconds_)));
    last_wait_seconds_ = Seconds(std::chrono::steady_clock::now() - began).count();
    stopped = outcome == Thread::Outcome::stalled && stops && stops();
  } while (outcome == Thread::Outcome::stalled && !stopped && last_wait_seconds_ < options_.timeout.count());
  if (stopped) return std::nullopt;
  if (outcome == Thread::Outcome::stalled) refuse_stalled();
  if (batch) state_ = batch->state;
  return batch;
}

void BatchStream::refuse_stalled() const {
  throw Error(ExitCode::bad_data,
              fmt::format("dataset {}: no batch for {:.0f} s (data.timeout) while reading {}. See whether its disk or "
                          "network file system answers, or raise data.timeout.",
                          options_.chunks.dataset, options_.timeout.count(), worker_->chunks->reading()));
}

std::string BatchStream::place_of(const StreamState& state) const { return worker_->chunks->place_of(state); }

void BatchStream::restore(const StreamState& state) {
  // It reads from the chunks that are restored, so it must have ended.
  if (!worker_->thread->stop(options_.timeout)) refuse_stalled();
  worker_->thread.reset();
  worker_->chunks->restore(state);
  state_ = worker_->chunks->state();
  start();
}

void BatchStream::recycle(StepBatch&& batch) { worker_->returned->put(std::move(batch)); }

int64_t BatchStream::ready() const { return worker_->thread->ready(); }

namespace {

/// Gives `batch` the plan's shape. Keeps old contents; the caller then fills or clears every row.
void reshape(MicroBatch& batch, const BatchPlan& plan) {
  batch.samples = plan.local_batch;
  batch.sequence_length = plan.sequence_length;
  const auto size = static_cast<size_t>(batch.samples * batch.sequence_length);
  batch.tokens.resize(size);
  batch.labels.resize(size);
  batch.document_bounds.resize(static_cast<size_t>(batch.samples));
  if (batch.positions.size() == size) return;
  batch.positions.resize(size);
  for (int64_t row = 0; row < batch.samples; ++row) {
    const auto begin = batch.positions.begin() + row * batch.sequence_length;
    std::iota(begin, begin + batch.sequence_length, int64_t{0});
  }
}

/// Fills a padding row: all labels are ignored.
void clear_row(MicroBatch& batch, int64_t row) {
  const int64_t offset = row * batch.sequence_length;
  std::fill_n(batch.tokens.begin() + offset, batch.sequence_length, 0);
  std::fill_n(batch.labels.begin() + offset, batch.sequence_length, kIgnoredLabel);
  const auto positions = batch.positions.begin() + offset;
  std::iota(positions, positions + batch.sequence_length, int64_t{0});
  batch.document_bounds[static_cast<size_t>(row)] = {0};
}

/// Sets the positions where a document, or the rest of one, starts; positions, masks and ignored labels follow them.
void take_bounds(const Chunk& chunk, std::vector<int32_t>& bounds) {
  bounds.clear();
  if (chunk.begins_inside_document()) bounds.push_back(0);
  bounds.insert(bounds.end(), chunk.document_starts.begin(), chunk.document_starts.end());
}

void fill_row(MicroBatch& batch, int64_t row, const Chunk& chunk, const RowOptions& options) {
  const int64_t length = batch.sequence_length;
  const int64_t offset = row * length;
  int64_t* const labels = batch.labels.data() + offset;
  widen_row(chunk.tokens.data(), length, batch.tokens.data() + offset, labels);
  std::vector<int32_t>& bounds = batch.document_bounds[static_cast<size_t>(row)];
  take_bounds(chunk, bounds);
  if (!chunk.counts.empty()) {
    for (int64_t i = 0; i < length; ++i) {
      if (chunk.counts[static_cast<size_t>(i) + 1] == 0) labels[i] = kIgnoredLabel;
    }
  } else if (options.labels_end_with_document) {
    for (const int32_t start : bounds) {
      if (start > 0) labels[start - 1] = kIgnoredLabel;
    }
    if (chunk.ends_document) labels[length - 1] = kIgnoredLabel;
  }
  if (!options.restart_positions) return;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const int64_t end = i + 1 < bounds.size() ? bounds[i + 1] : length;
    const auto begin = batch.positions.begin() + offset;
    std::iota(begin + bounds[i], begin + end, int64_t{0});
  }
}

/// Number of labels in a chunk that are not ignored.
int64_t valid_labels(const Chunk& chunk, int64_t length, const RowOptions& options) {
  if (!chunk.counts.empty()) return std::count(chunk.counts.begin() + 1, chunk.counts.end(), 1);
  if (!options.labels_end_with_document) return length;
  return length - (chunk.ends_document ? 1 : 0) -
         std::count_if(chunk.document_starts.begin(), chunk.document_starts.end(),
                       [](int32_t start) { return start > 0; });
}

}  // namespace

std::optional<StepBatch> assemble_step(ChunkSource& chunks, const BatchPlan& plan, const RowOptions& options,
                                       StepBatch used) {
  StepBatch step;
  step.microbatches = std::move(used.microbatches);
  step.microbatches.resize(static_cast<size_t>(plan.accumulation));
  for (MicroBatch& microbatch : step.microbatches) reshape(microbatch, plan);
  const int64_t ranks = plan.own_stream ? 1 : plan.dp_degree, rank = plan.own_stream ? 0 : plan.dp_rank;
  const int64_t wanted = plan.local_batch * plan.accumulation * ranks;
  Chunk chunk;
  for (; step.samples < wanted; ++step.samples) {
    // Every rank reads the whole sequence and keeps its own local batches (number microbatch · ranks + rank): so each
    // knows the valid tokens of the step without communication. A source with random access skips the others' tokens.
    const int64_t group = step.samples / plan.local_batch;
    const bool is_own = group % ranks == rank;
    if (!(is_own ? chunks.next(chunk) : chunks.skip(chunk))) break;
    step.valid_tokens += valid_labels(chunk, plan.sequence_length, options);
    if (!is_own) continue;
    auto& microbatch = step.microbatches[static_cast<size_t>(group / ranks)];
    fill_row(microbatch, step.samples % plan.local_batch, chunk, options);
  }
  for (int64_t sample = step.samples; sample < wanted; ++sample) {
    const int64_t group = sample / plan.local_batch;
    if (group % ranks != rank) continue;
    clear_row(step.microbatches[static_cast<size_t>(group / ranks)], sample % plan.local_batch);
  }
  step.counters = chunks.counters();
  step.notices = chunks.take_notices();
  step.state = chunks.state();
  if (step.samples == 0) return std::nullopt;
  // A rank sees its own stream alone; the others have the same counts, being endless and without masked labels.
  if (plan.own_stream) {
    step.samples *= plan.dp_degree;
    step.valid_tokens *= plan.dp_degree;
  }
  return step;
}

}  // namespace titan
