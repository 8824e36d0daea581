// debug.dump_steps: everything about one step as full logical tensors in one file, independent of the layout. For
// comparing two layouts, revisions or frameworks; docs/debugging.md lists the keys.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "titan/checkpoint/safetensors.h"
#include "titan/distributed/communicator.h"
#include "titan/model/model.h"
#include "titan/ops/context_parallel.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/gradient_norm.h"

namespace titan {

/// The ranks that a dump is gathered from; null for a single process.
struct DumpRanks {
  std::shared_ptr<Communicator> world;
  std::shared_ptr<Communicator> data;  // ranks that read different tokens: by samples, then by token position
  SequenceSplit split;                 // of every sample over its ranks
  bool writes = true;                  // this rank writes the file
  bool pipeline = false;               // some parameters are on other ranks, without memory here
};

class DebugDump {
 public:
  /// Collects "param.NAME" (copies) and the batch. All calls are collective; `ranks` gathers the ranks' parts into full
  /// tensors.
  DebugDump(std::span<Parameter* const> parameters, std::span<const BatchContext> microbatches, DumpRanks ranks = {});
  /// "logits": those of each microbatch [B, T, V].
  void add_logits(const std::vector<at::Tensor>& logits);
  /// "grad.NAME", "loss" and "grad_norm", which are fp64 scalars: after the last reduction, before the optimizer.
  void add_gradients(const at::Tensor& loss, const at::Tensor& grad_norm);
  /// One group's gradients, when the optimizer steps in backward.
  void add_gradients_of(std::span<Parameter* const> parameters);
  /// "param_after.NAME", then the file `folder`/debug/step-N/step.safetensors; written by one rank.
  std::filesystem::path write(const std::filesystem::path& folder, int64_t step);

 private:
  /// Whole samples of all data-parallel ranks, microbatch by microbatch: the order of the global batch.
  at::Tensor global_batch(const std::vector<at::Tensor>& microbatches) const;
  void add_parameter(const std::string& prefix, const Parameter& parameter, const at::Tensor& shard);

  DumpRanks ranks_;
  at::Device device_;  // of the batch, and of messages between ranks
  std::vector<Parameter*> parameters_;
  NamedTensors tensors_;
};

}  // namespace titan
