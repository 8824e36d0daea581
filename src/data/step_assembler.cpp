#include "titan/data/step_assembler.h"

#include <algorithm>
#include <numeric>

namespace titan {
namespace {

/// A microbatch of rows that count nowhere, to be filled.
MicroBatch empty_microbatch(const BatchPlan& plan) {
  MicroBatch batch;
  batch.samples = plan.local_batch;
  batch.sequence_length = plan.sequence_length;
  auto size = static_cast<size_t>(batch.samples * batch.sequence_length);
  batch.tokens.assign(size, 0);
  batch.labels.assign(size, kIgnoredLabel);
  batch.positions.resize(size);
  for (int64_t row = 0; row < batch.samples; ++row) {
    auto begin = batch.positions.begin() + row * batch.sequence_length;
    std::iota(begin, begin + batch.sequence_length, int64_t{0});
  }
  batch.document_bounds.assign(static_cast<size_t>(batch.samples), {0});
  return batch;
}

void fill_row(MicroBatch& batch, int64_t row, const Chunk& chunk, bool restart_positions) {
  auto length = batch.sequence_length;
  auto offset = row * length;
  std::copy_n(chunk.tokens.begin(), length, batch.tokens.begin() + offset);
  std::copy_n(chunk.tokens.begin() + 1, length, batch.labels.begin() + offset);
  std::vector<int32_t>& bounds = batch.document_bounds[static_cast<size_t>(row)];
  bounds = chunk.document_starts;
  if (chunk.begins_inside_document()) bounds.insert(bounds.begin(), 0);
  if (!restart_positions) return;
  for (size_t i = 0; i < bounds.size(); ++i) {
    int64_t end = i + 1 < bounds.size() ? bounds[i + 1] : length;
    auto begin = batch.positions.begin() + offset;
    std::iota(begin + bounds[i], begin + end, int64_t{0});
  }
}

}  // namespace

std::optional<StepBatch> assemble_step(ChunkStream& chunks, const BatchPlan& plan, bool restart_positions) {
  StepBatch step;
  step.first_chunk = chunks.state().chunk;
  for (int64_t a = 0; a < plan.accumulation; ++a) step.microbatches.push_back(empty_microbatch(plan));
  Chunk chunk;
  for (; step.samples < plan.global_batch() && chunks.next(chunk); ++step.samples) {
    int64_t group = step.samples / plan.local_batch;  // the local batch it falls into: microbatch · dp + rank
    if (group % plan.dp_degree != plan.dp_rank) continue;
    auto& microbatch = step.microbatches[static_cast<size_t>(group / plan.dp_degree)];
    fill_row(microbatch, step.samples % plan.local_batch, chunk, restart_positions);
  }
  step.valid_tokens = step.samples * plan.sequence_length;  // every position of a chunk has a label
  step.counters = chunks.counters();
  step.notices = chunks.take_notices();
  step.state = chunks.state();
  if (step.samples == 0) return std::nullopt;
  return step;
}

}  // namespace titan
