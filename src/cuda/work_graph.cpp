#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <utility>

#include "parts.h"
#include "titan/base/error.h"
#include "titan/parallel/work_graph.h"

namespace titan {
namespace {

at::Tensor unowned_view(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {}, tensor.options());
}

class CudaGraph : public CapturedGraph {
 public:
  CudaGraph(const std::function<HiddenStates()>& body, at::cuda::MempoolId_t pool, const at::cuda::CUDAStream& stream) {
    at::cuda::CUDAEvent before;
    before.record(at::cuda::getCurrentCUDAStream());
    c10::cuda::CUDAStreamGuard guard(stream);
    before.block(stream);
    std::exception_ptr failure;
    // Other threads may call CUDA during the capture: NCCL's watchdog and the data reader do.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      results_ = body();
    } catch (...) {
      failure = std::current_exception();
    }
    try {
      graph_.capture_end();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    if (failure) report(failure);
    for (const at::Tensor& result : results_) aliases_.push_back(unowned_view(result));
  }

  HiddenStates run() override {
    graph_.replay();
    return results_.empty() ? aliases_ : std::exchange(results_, {});
  }

 private:
  [[noreturn]] static void report(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      const std::string first_line = message.substr(0, message.find('\n'));
      if (reports_out_of_memory(message)) throw GraphsDoNotFit(first_line);
      refuse(first_line);
    } catch (const std::exception& error) {
      refuse(error.what());
    }
  }

  [[noreturn]] static void refuse(const std::string& reason) {
    throw Error(ExitCode::bug, "a part of the step could not be recorded as a CUDA graph: " + reason +
                                   "; say compile.cuda_graphs = false to run without them");
  }

  at::cuda::CUDAGraph graph_;
  HiddenStates results_;
  HiddenStates aliases_;
};

class CudaGraphCapture : public GraphCapture {
 public:
  explicit CudaGraphCapture(c10::DeviceIndex gpu)
      : stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/false, gpu)), pool_(at::cuda::graph_pool_handle()) {}

  void prepare() override {
    // debug.sync_check would report this wait, which is made once for a captured sequence and not in every step.
    auto& state = c10::cuda::warning_state();
    const c10::cuda::SyncDebugMode mode = state.get_sync_debug_mode();
    state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    at::cuda::getCurrentCUDAStream().synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    state.set_sync_debug_mode(mode);
  }
  std::unique_ptr<CapturedGraph> record(std::function<HiddenStates()> body) override {
    return std::make_unique<CudaGraph>(body, pool_, stream_);
  }
  at::Tensor unowned(const at::Tensor& tensor) override { return unowned_view(tensor); }

 private:
  at::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<GraphCapture> make_cuda_capture(int64_t gpu) {
  return std::make_unique<CudaGraphCapture>(static_cast<c10::DeviceIndex>(gpu));
}

}  // namespace titan
