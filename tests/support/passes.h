// Parts of a step, run by themselves: for tests that look at what is there between them.
#pragma once

#include <ATen/ops/ones.h>

#include <vector>

#include "titan/parallel/executor.h"

namespace titan {

/// Forward of one microbatch through the whole chain, of a rank without a pipeline: its loss. Its state is kept.
inline at::Tensor forward(Executor& executor, const BatchContext& batch, int64_t microbatch = 0,
                          const Executor::Observer& observer = {}) {
  const std::vector<BatchContext> batches(static_cast<size_t>(microbatch) + 1, batch);
  const std::vector<Action> table{{ActionKind::forward, 0, static_cast<int>(microbatch)}};
  StepWork none;
  return executor.run(expand(executor.plan(), table, executor.state(), /*is_last=*/false), batches, none, observer);
}

/// Backward of a microbatch whose forward ran. `is_last`: gradients are reduced and become shards.
inline void backward(Executor& executor, const BatchContext& batch, int64_t microbatch, bool is_last,
                     const Executor::Observer& observer = {}) {
  const std::vector<BatchContext> batches(static_cast<size_t>(microbatch) + 1, batch);
  const std::vector<Action> table{{ActionKind::backward, 0, static_cast<int>(microbatch)}};
  StepWork none;
  executor.run(expand(executor.plan(), table, executor.state(), is_last), batches, none, observer);
}

/// Runs one instruction by itself.
inline void execute(Executor& executor, const Action& action, StepWork& work) {
  executor.run({executor.state(), executor.state(), {action}}, {}, work);
}

/// Runs WAIT_HOST, which with CPU offload waits until the gradients are on the host. The step's own numbers that it
/// waits for are replaced by one number on `device`.
inline void wait_host(Executor& executor, const at::Device& device = at::kCPU) {
  struct Scalar : StepWork {
    std::vector<at::Tensor*> applied_scalars() override { return {&one}; }
    at::Tensor one;
  } scalar;
  scalar.one = at::ones({}, at::TensorOptions(device));
  execute(executor, {.kind = ActionKind::wait_host}, scalar);
}

}  // namespace titan
