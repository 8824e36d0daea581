// What this folder's files provide to library.cpp.
#pragma once

#include "titan/distributed/mesh_communicators.h"
#include "titan/distributed/peer_memory.h"
#include "titan/gpu/cuda.h"
#include "titan/parallel/work_graph.h"

namespace titan {

MakeCommunicator nccl_communicator_maker(c10::intrusive_ptr<c10d::Store> store, int64_t gpu,
                                         std::shared_ptr<OverdueWatch> watch);

std::unique_ptr<PeerMemory> make_cuda_peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                                  int64_t rank, int64_t size, int64_t capacity,
                                                  std::chrono::milliseconds timeout, int64_t gpu);

std::unique_ptr<GraphCapture> make_cuda_capture(int64_t gpu);

}  // namespace titan
