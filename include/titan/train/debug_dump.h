// debug.dump_steps: everything about one step as full logical tensors in one file, whatever the layout. The tool for
// comparing two layouts, two revisions or two frameworks; docs/debugging.md lists the keys.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "titan/checkpoint/safetensors.h"
#include "titan/model/unit.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/gradient_norm.h"

namespace titan {

class DebugDump {
 public:
  /// Collects "param.NAME" (copies) and the batch.
  DebugDump(std::span<Parameter* const> parameters, std::span<const BatchContext> microbatches);
  void add_logits(const std::vector<at::Tensor>& logits);
  /// "grad.NAME", "loss" and "grad_norm": after the last reduction, before the optimizer.
  void add_gradients(const at::Tensor& loss, const at::Tensor& grad_norm);
  /// One group's gradients, when the optimizer steps in backward.
  void add_gradients_of(std::span<Parameter* const> parameters);
  /// "param_after.NAME", then the file `folder`/debug/step-N/step.safetensors.
  std::filesystem::path write(const std::filesystem::path& folder, int64_t step);

 private:
  std::vector<Parameter*> parameters_;
  NamedTensors tensors_;
};

}  // namespace titan
