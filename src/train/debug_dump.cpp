#include "titan/train/debug_dump.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/ops/tensor_checks.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

/// [data-parallel ranks · ranks of a sample · B, local T, …] → [data-parallel ranks · B, T, …].
at::Tensor whole_samples(const at::Tensor& gathered, const SequenceSplit& split, int64_t samples) {
  std::vector<int64_t> shape = gathered.sizes().vec();
  const int64_t length = shape[1] * split.ranks;
  shape[0] = -1;
  shape.insert(shape.begin() + 1, {split.ranks, samples});
  const at::Tensor shares = gathered.view(shape);  // [data-parallel ranks, ranks of a sample, B, local T, …]
  shape.erase(shape.begin() + 1);
  shape[0] = shares.size(0), shape[2] = length;
  at::Tensor whole = at::empty(shape, gathered.options());
  for (int64_t rank = 0; rank < split.ranks; ++rank) {
    int64_t local = 0;
    for (const PlaceRange& places : split.places(rank, length)) {
      const int64_t count = places.end - places.begin;
      whole.narrow(2, places.begin, count).copy_(shares.select(1, rank).narrow(2, local, count));
      local += count;
    }
  }
  return whole.flatten(0, 1);
}

}  // namespace

DebugDump::DebugDump(std::span<Parameter* const> parameters, std::span<const BatchContext> microbatches,
                     DumpRanks ranks)
    : ranks_(std::move(ranks)),
      device_(microbatches[0].tokens.device()),
      parameters_(parameters.begin(), parameters.end()) {
  for (const BatchContext& batch : microbatches) check_batch(batch);
  std::vector<at::Tensor> tokens, labels;
  for (const BatchContext& batch : microbatches) {
    tokens.push_back(batch.tokens);
    labels.push_back(batch.labels);
  }
  tensors_.emplace_back("tokens", global_batch(tokens));
  tensors_.emplace_back("labels", global_batch(labels));
  // Without documents, positions are the token indices of this rank's part, equal for all samples: not dumped for a
  // split sequence.
  const bool has_positions = ranks_.split.ranks == 1 || !microbatches[0].bounds.document_starts.empty();
  if (has_positions && microbatches[0].positions.defined()) {
    std::vector<at::Tensor> positions;
    for (const BatchContext& batch : microbatches) positions.push_back(batch.positions);
    tensors_.emplace_back("positions", global_batch(positions));
  }
  for (Parameter* parameter : parameters_) add_parameter("param.", *parameter, parameter->master);
}

at::Tensor DebugDump::global_batch(const std::vector<at::Tensor>& microbatches) const {
  if (!ranks_.data) return at::cat(microbatches);
  std::vector<at::Tensor> gathered;
  for (const at::Tensor& mine : microbatches) {
    std::vector<int64_t> shape = mine.sizes().vec();
    shape[0] *= ranks_.data->size();
    gathered.push_back(at::empty(shape, mine.options()));
    ranks_.data->all_gather({gathered.back()}, {mine.contiguous()})->wait();
    gathered.back() = whole_samples(gathered.back(), ranks_.split, mine.size(0));
  }
  return at::cat(gathered);
}

void DebugDump::add_parameter(const std::string& prefix, const Parameter& parameter, const at::Tensor& shard) {
  at::Tensor whole = gather_logical(parameter, shard, ranks_.world.get(), device_);
  // If weights are on the host because they do not fit on the device, their full tensors do not fit either.
  if (parameter.master.is_cpu()) whole = whole.cpu();
  if (ranks_.writes) tensors_.emplace_back(prefix + parameter.name(), std::move(whole));
}

void DebugDump::add_logits(const std::vector<at::Tensor>& logits) {
  for (const at::Tensor& batch : logits) {  // [B, T, V] of one dtype: at::cat would widen the others
    TITAN_CHECK(same_kind(batch, logits[0]) && batch.dim() == 3, summary_of(batch), summary_of(logits[0]));
  }
  tensors_.emplace_back("logits", global_batch(logits));
}

void DebugDump::add_gradients(const at::Tensor& loss, const at::Tensor& grad_norm) {
  TITAN_CHECK(is_number(loss, at::kDouble) && same_form(loss, grad_norm), summary_of(loss), summary_of(grad_norm));
  tensors_.emplace_back("loss", loss.clone());
  tensors_.emplace_back("grad_norm", grad_norm.clone());
  add_gradients_of(parameters_);
}

void DebugDump::add_gradients_of(std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable() || (!ranks_.pipeline && !parameter->gradient_shard.defined())) continue;
    add_parameter("grad.", *parameter, parameter->gradient_shard);
  }
}

std::filesystem::path DebugDump::write(const std::filesystem::path& folder, int64_t step) {
  for (Parameter* parameter : parameters_) add_parameter("param_after.", *parameter, parameter->master);
  const std::filesystem::path place = folder / "debug" / fmt::format("step-{}", step);
  if (!ranks_.writes) return place / "step.safetensors";
  with_remedy("dumps take room in job.dump_folder: make some, or name fewer steps in debug.dump_steps", [&] {
    make_folders(place);
    write_safetensors(place / "step.safetensors", tensors_);
  });
  return place / "step.safetensors";
}

}  // namespace titan
