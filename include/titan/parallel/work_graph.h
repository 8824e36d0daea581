// Device work that is recorded once and then started by one call: a CUDA graph (Cuda::recorder). Tests use a CPU
// recorder instead, which runs the work's own code again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "titan/model/model.h"

namespace titan {

/// There was too little memory to record work that runs without being recorded.
struct GraphsDoNotFit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// Starts the work; its results are in the same memory each time. The results of the first run own that memory, later
  /// ones only point to it. The memory is valid until work recorded after this one runs.
  virtual HiddenStates run() = 0;
};

/// Records CUDA graphs that share one memory pool. They must run in the order of recording: memory that one graph frees
/// is used by later ones, so another order, or recording more in between, would overwrite memory in use.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;
  /// Called before a sequence is recorded: frees cached memory for the work that will be recorded.
  virtual void prepare() = 0;
  /// Nothing of `body` is computed before CapturedGraph::run. It must not wait for the device, and the tensors that it
  /// reads and writes must stay at their addresses. Its host code runs once. Throws GraphsDoNotFit, or Error if it
  /// cannot be recorded; some of the host code has run then.
  virtual std::unique_ptr<CapturedGraph> record(std::function<HiddenStates()> body) = 0;
  /// A tensor that views the memory of a result (any shape) without owning it.
  virtual at::Tensor unowned(const at::Tensor& tensor) = 0;

  /// Called once, with the reason, when the owner stops recording because the graphs do not fit.
  std::function<void(const std::string& reason)> given_up = [](const std::string&) {};
};

}  // namespace titan
