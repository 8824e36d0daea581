#include "titan/train/batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace titan {
namespace {

at::Tensor matrix(const std::vector<int64_t>& values, const MicroBatch& batch, const at::Device& device) {
  const bool pinned = !device.is_cpu();
  at::Tensor host =
      at::empty({batch.samples, batch.sequence_length}, at::TensorOptions(at::kLong).pinned_memory(pinned));
  std::memcpy(host.mutable_data_ptr(), values.data(), values.size() * sizeof(int64_t));
  return pinned ? host.to(device, /*non_blocking=*/true) : host;
}

}  // namespace

BatchContext to_device(const MicroBatch& batch, double loss_scale, bool block_causal, const at::Device& device) {
  BatchContext context;
  context.tokens = matrix(batch.tokens, batch, device);
  context.labels = matrix(batch.labels, batch, device);
  context.loss_scale = loss_scale;
  if (block_causal) {
    context.positions = matrix(batch.positions, batch, device);
    for (const auto& bounds : batch.document_bounds) {
      context.bounds.document_starts.emplace_back(bounds.begin(), bounds.end());
    }
  }
  return context;
}

std::vector<BatchContext> to_device(const StepBatch& batch, bool block_causal, const at::Device& device) {
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.valid_tokens));
  std::vector<BatchContext> microbatches;
  for (const MicroBatch& microbatch : batch.microbatches) {
    microbatches.push_back(to_device(microbatch, scale, block_causal, device));
  }
  return microbatches;
}

}  // namespace titan
