// Work on a device that is recorded once and then started again by one call: a CUDA graph (Cuda::recorder). Tests put a
// recorder for the CPU in its place, which runs the work's own code again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "titan/model/model.h"

namespace titan {

class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// Starts the work; its results are in the same memory each time. The results of the first run own that memory, later
  /// ones only point to it: it is theirs until work recorded after this one runs.
  virtual HiddenStates run() = 0;
};

/// Records CUDA graphs that share one memory pool. They must run in the order of recording: memory that one graph frees
/// is used by later ones, so another order, or recording more in between, would overwrite memory in use.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;
  /// Before a sequence is recorded: gives back memory that is cached for work which will now be recorded.
  virtual void prepare() = 0;
  /// Nothing of `body` is computed before CapturedGraph::run. It must not wait for the device, and what it reads and
  /// writes must stay where it is. What it does on the host is done once. Fails with Error when it cannot be recorded.
  virtual std::unique_ptr<CapturedGraph> record(std::function<HiddenStates()> body) = 0;
  /// The memory of a result without a share in its ownership.
  virtual at::Tensor unowned(const at::Tensor& tensor) = 0;
};

}  // namespace titan
