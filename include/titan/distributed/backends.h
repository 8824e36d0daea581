// What communicators are made of: memory between the CPU ranks of one host, and LibTorch's process groups: Gloo between
// CPUs of several hosts, NCCL between GPUs (Cuda::nccl). Members find each other through the run's store under the
// group's name.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "titan/distributed/communicator.h"

namespace titan {

class PeerWaits;

struct GroupRequest {
  std::string name;       // what the group is for; equal on all ranks
  std::string instance;   // which of the groups of that name; equal on all members
  std::string interface;  // network interface for Gloo; empty: that of the host's name
  int64_t rank = 0;       // of this process within the group
  int64_t size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::vector<int64_t> members{};      // ranks of the run, by rank of the group; empty: not known
  std::shared_ptr<PeerWaits> waits{};  // where this rank notes whom it waits for; may be null
  std::string queue{};                 // groups of equal members and queue have one transport: calls follow each other
};

/// For ranks of one host. Blocks until all members have called it. Null, on all of them, when one of them cannot share
/// memory with the others; `refusal` says why.
std::unique_ptr<Communicator> make_host_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const GroupRequest& request, std::string& refusal);

/// Blocks until all members have called it. Throws Error(launcher) naming the group when they have not within the
/// timeout.
std::unique_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const GroupRequest& request);

/// Makes one group; the request's rank and size are those of this process in it.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const GroupRequest&)>;

}  // namespace titan
