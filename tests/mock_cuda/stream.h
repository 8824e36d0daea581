// Streams, events and graphs of the mock GPU. What a stream is given is done at once, or, with MOCK_CUDA=late, as late
// as CUDA allows: when the host waits for it. A program that reads before it waited then reads what was there before.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mock_cuda {

/// One piece of work: what the ledger calls it, and what it does to memory (nothing for a kernel).
struct Work {
  std::string name;
  std::function<void()> run;
};

/// Puts `work` into the stream, or into the graph that the stream records.
void enqueue(cudaStream_t stream, Work work);
/// Everything that was put into the stream is done when this returns.
void drain(cudaStream_t stream);
void drain_all();
bool is_capturing(cudaStream_t stream);
/// What CUDA does with `call` (cudaMalloc, cudaDeviceSynchronize, …) while a graph is recorded in a mode that forbids
/// it: it is refused, and the recording is lost.
cudaError_t unsafe_while_capturing(const char* call);
cudaError_t set_error(cudaError_t error);

}  // namespace mock_cuda
