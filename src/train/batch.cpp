#include "titan/train/batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace titan {
namespace {

/// [rows, local length]: of each row of `values`, of `length` each, the columns of this rank.
at::Tensor matrix(const std::vector<int64_t>& values, int64_t length, const SequenceShare& share,
                  const at::Device& device) {
  const bool pinned = !device.is_cpu();
  const int64_t rows = static_cast<int64_t>(values.size()) / length;
  at::Tensor host = at::empty({rows, length / share.split.ranks}, at::TensorOptions(at::kLong).pinned_memory(pinned));
  auto* out = host.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    for (const PlaceRange& places : share.split.places(share.rank, length)) {
      out = std::copy(values.data() + row * length + places.begin, values.data() + row * length + places.end, out);
    }
  }
  return pinned ? host.to(device, /*non_blocking=*/true) : host;
}

/// The column indices that this rank holds, the same for all samples.
at::Tensor places_held(int64_t length, const SequenceShare& share, const at::Device& device) {
  std::vector<int64_t> places(static_cast<size_t>(length));
  std::iota(places.begin(), places.end(), 0);
  return matrix(places, length, share, device);
}

}  // namespace

BatchContext to_device(const MicroBatch& batch, double loss_scale, bool block_causal, const at::Device& device,
                       const SequenceShare& share) {
  const int64_t length = batch.sequence_length;
  BatchContext context;
  context.tokens = matrix(batch.tokens, length, share, device);
  context.labels = matrix(batch.labels, length, share, device);
  context.loss_scale = loss_scale;
  if (block_causal) {
    context.positions = matrix(batch.positions, length, share, device);
    for (const auto& bounds : batch.document_bounds) {
      context.bounds.document_starts.emplace_back(bounds.begin(), bounds.end());
    }
  } else if (!share.whole()) {
    context.positions = places_held(length, share, device);
  }
  return context;
}

int64_t valid_tokens_of(const StepBatch& batch, const SequenceShare& share) {
  int64_t valid = 0;
  for (const MicroBatch& microbatch : batch.microbatches) {
    const int64_t length = microbatch.sequence_length;
    for (int64_t begin = 0; begin < std::ssize(microbatch.labels); begin += length) {
      const int64_t* row = microbatch.labels.data() + begin;
      for (const PlaceRange& places : share.split.places(share.rank, length)) {
        valid +=
            std::count_if(row + places.begin, row + places.end, [](int64_t label) { return label != kIgnoredLabel; });
      }
    }
  }
  return valid;
}

std::vector<BatchContext> to_device(const StepBatch& batch, bool block_causal, const at::Device& device,
                                    const SequenceShare& share) {
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.valid_tokens));
  std::vector<BatchContext> microbatches;
  for (const MicroBatch& microbatch : batch.microbatches) {
    microbatches.push_back(to_device(microbatch, scale, block_causal, device, share));
  }
  return microbatches;
}

}  // namespace titan
