#include "titan/data/batch_stream.h"

#include <fmt/format.h>

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

ChunkOptions chunk_options(const BatchPlan& plan, const BatchOptions& options) {
  ChunkOptions chunks;
  chunks.sequence_length = plan.sequence_length;
  chunks.infinite = options.infinite;
  chunks.chunks_needed = options.infinite ? plan.global_batch() : 1;
  chunks.dataset = options.dataset;
  return chunks;
}

}  // namespace

struct BatchStream::Worker {
  // The thread holds the chunks too: see PrefetchThread on threads that are left behind.
  std::shared_ptr<ChunkStream> chunks;
  std::unique_ptr<PrefetchThread<StepBatch>> thread;
};

BatchStream::BatchStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer,
                         const BatchPlan& plan, const BatchOptions& options)
    : plan_(plan), options_(options), worker_(std::make_unique<Worker>()) {
  check(plan, options);
  worker_->chunks =
      std::make_shared<ChunkStream>(std::move(source), std::move(tokenizer), chunk_options(plan, options));
  state_ = worker_->chunks->state();
  start();
}

BatchStream::~BatchStream() = default;

void BatchStream::start() {
  auto produce = [chunks = worker_->chunks, plan = plan_, restart = options_.restart_positions] {
    return assemble_step(*chunks, plan, restart);
  };
  worker_->thread = std::make_unique<PrefetchThread<StepBatch>>(options_.queue_depth, std::move(produce));
}

std::optional<StepBatch> BatchStream::next() {
  using Thread = PrefetchThread<StepBatch>;
  auto began = std::chrono::steady_clock::now();
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

int64_t BatchStream::ready() const { return worker_->thread->ready(); }

}  // namespace titan
