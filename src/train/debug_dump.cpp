#include "titan/train/debug_dump.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/parallel/assembly.h"

namespace titan {

DebugDump::DebugDump(std::span<Parameter* const> parameters, std::span<const BatchContext> microbatches,
                     DumpRanks ranks)
    : ranks_(std::move(ranks)), parameters_(parameters.begin(), parameters.end()) {
  std::vector<at::Tensor> tokens, labels;
  for (const BatchContext& batch : microbatches) {
    tokens.push_back(batch.tokens);
    labels.push_back(batch.labels);
  }
  tensors_.emplace_back("tokens", global_batch(tokens));
  tensors_.emplace_back("labels", global_batch(labels));
  if (microbatches[0].positions.defined()) {
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
  }
  return at::cat(gathered);
}

void DebugDump::add_parameter(const std::string& prefix, const Parameter& parameter, const at::Tensor& shard) {
  at::Tensor whole = gather_logical(parameter, shard, ranks_.world.get());
  if (ranks_.writes) tensors_.emplace_back(prefix + parameter.name(), std::move(whole));
}

void DebugDump::add_logits(const std::vector<at::Tensor>& logits) {
  tensors_.emplace_back("logits", global_batch(logits));
}

void DebugDump::add_gradients(const at::Tensor& loss, const at::Tensor& grad_norm) {
  tensors_.emplace_back("loss", loss.clone());
  tensors_.emplace_back("grad_norm", grad_norm.clone());
  add_gradients_of(parameters_);
}

void DebugDump::add_gradients_of(std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    if (!ranks_.pipeline && !parameter->gradient_shard.defined()) continue;
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
