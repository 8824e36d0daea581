#include "titan/train/debug_dump.h"

#include <ATen/ops/cat.h>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {

DebugDump::DebugDump(std::span<Parameter* const> parameters, std::span<const BatchContext> microbatches)
    : parameters_(parameters.begin(), parameters.end()) {
  std::vector<at::Tensor> tokens, labels;
  for (const BatchContext& batch : microbatches) {
    tokens.push_back(batch.tokens);
    labels.push_back(batch.labels);
  }
  tensors_.emplace_back("tokens", at::cat(tokens));
  tensors_.emplace_back("labels", at::cat(labels));
  if (microbatches[0].positions.defined()) {
    std::vector<at::Tensor> positions;
    for (const BatchContext& batch : microbatches) positions.push_back(batch.positions);
    tensors_.emplace_back("positions", at::cat(positions));
  }
  for (Parameter* parameter : parameters_)
    tensors_.emplace_back("param." + parameter->name(), parameter->master.clone());
}

void DebugDump::add_logits(const std::vector<at::Tensor>& logits) { tensors_.emplace_back("logits", at::cat(logits)); }

void DebugDump::add_gradients(const at::Tensor& loss, const at::Tensor& grad_norm) {
  tensors_.emplace_back("loss", loss.clone());
  tensors_.emplace_back("grad_norm", grad_norm.clone());
  add_gradients_of(parameters_);
}

void DebugDump::add_gradients_of(std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    if (!parameter->gradient_shard.defined()) continue;
    tensors_.emplace_back("grad." + parameter->name(), parameter->gradient_shard.clone());
  }
}

std::filesystem::path DebugDump::write(const std::filesystem::path& folder, int64_t step) {
  for (Parameter* parameter : parameters_) tensors_.emplace_back("param_after." + parameter->name(), parameter->master);
  const std::filesystem::path place = folder / "debug" / fmt::format("step-{}", step);
  with_remedy("dumps take room in job.dump_folder: make some, or name fewer steps in debug.dump_steps", [&] {
    make_folders(place);
    write_safetensors(place / "step.safetensors", tensors_);
  });
  return place / "step.safetensors";
}

}  // namespace titan
