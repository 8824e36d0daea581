#include "titan/data/batch_stream.h"

#include <fmt/format.h>

#include <mutex>

#include "titan/base/error.h"
#include "titan/data/prefetch_thread.h"
#include "titan/data/step_assembler.h"

namespace titan {
namespace {

void check(const BatchPlan& plan, const BatchOptions& options) {
  TITAN_CHECK(plan.sequence_length > 0, plan.sequence_length);
  TITAN_CHECK(plan.local_batch > 0 && plan.accumulation > 0, plan.local_batch, plan.accumulation);
  TITAN_CHECK(plan.dp_rank >= 0 && plan.dp_rank < plan.dp_degree, plan.dp_rank, plan.dp_degree);
  TITAN_CHECK(options.queue_depth > 0, options.queue_depth);
}

/// Batches that came back, for their memory.
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
  static constexpr size_t kMost = 2;
  std::mutex mutex_;
  std::vector<StepBatch> batches_;
};

}  // namespace

ChunkOptions chunk_options(const BatchPlan& plan, const BatchOptions& options) {
  ChunkOptions chunks;
  chunks.sequence_length = plan.sequence_length;
  chunks.packing = options.packing;
  chunks.infinite = options.infinite;
  const int64_t of_a_step = plan.own_stream ? plan.local_batch * plan.accumulation : plan.global_batch();
  chunks.chunks_needed = options.infinite ? of_a_step : 1;
  chunks.dataset = options.dataset;
  chunks.section = options.section;
  chunks.announces_passes = options.announces_passes;
  return chunks;
}

struct BatchStream::Worker {
  // The thread holds the chunks too: see PrefetchThread on threads that are left behind.
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
  auto produce = [chunks = worker_->chunks, returned = worker_->returned, plan = plan_,
                  rows = RowOptions{options_.restart_positions, options_.labels_end_with_document}] {
    return assemble_step(*chunks, plan, rows, returned->take());
  };
  worker_->thread = std::make_unique<PrefetchThread<StepBatch>>(options_.queue_depth, std::move(produce));
}

std::optional<StepBatch> BatchStream::next() {
  using Thread = PrefetchThread<StepBatch>;
  auto began = std::chrono::steady_clock::now();
  ready_before_ = ready();
  std::optional<StepBatch> batch;
  Thread::Outcome outcome = worker_->thread->take(batch, options_.timeout);
  last_wait_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  total_wait_seconds_ += last_wait_seconds_;
  if (outcome == Thread::Outcome::stalled) {
    throw Error(
        ExitCode::bad_data,
        fmt::format(
            "dataset {}: no batch for {:.0f} s (data.timeout) while reading {}. See whether its disk or network "
            "file system answers, or raise data.timeout.",
            options_.dataset, options_.timeout.count(), worker_->chunks->reading()));
  }
  if (batch) state_ = batch->state;
  return batch;
}

void BatchStream::restore(const StreamState& state) {
  worker_->thread.reset();
  worker_->chunks->restore(state);
  state_ = worker_->chunks->state();
  start();
}

void BatchStream::recycle(StepBatch&& batch) { worker_->returned->put(std::move(batch)); }

int64_t BatchStream::ready() const { return worker_->thread->ready(); }

}  // namespace titan
