// Peer memory between GPUs on LibTorch's symmetric memory. Its signals are binary flags (set when clear, cleared when
// seen), so counts are checked here but not stored there.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <array>
#include <vector>

#include "parts.h"
#include "titan/base/error.h"
#include "titan/distributed/peer_memory.h"

namespace titan {
namespace {

namespace symmetric = c10d::symmetric_memory;

/// Work on the side stream. Keeps its tensors alive until the caller's stream waits for it.
class SideWork : public PendingCollective {
 public:
  SideWork(std::function<void()> work, const c10::cuda::CUDAStream& side) : work_(std::move(work)) {
    at::cuda::CUDAEvent before;
    before.record();
    const c10::cuda::CUDAStreamGuard guard(side);
    before.block(side);
    work_();
    done_.record(side);
  }
  ~SideWork() override { wait(); }
  void wait() override {
    if (!work_) return;
    done_.block(c10::cuda::getCurrentCUDAStream());
    work_ = nullptr;
  }

 private:
  std::function<void()> work_;
  at::cuda::CUDAEvent done_;
};

/// Symmetric memory finds its ranks and their store by the name of a process group. This one has no backend and
/// communicates nothing.
class NamedCommunicator {
 public:
  NamedCommunicator(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size)
      : name_(std::move(name)),
        group_(c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(rank), static_cast<int>(size))) {
    group_->setGroupName(name_);
    c10d::register_process_group(name_, group_);
  }
  ~NamedCommunicator() { c10d::unregister_process_group(name_); }
  NamedCommunicator(const NamedCommunicator&) = delete;
  NamedCommunicator& operator=(const NamedCommunicator&) = delete;

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

class CudaPeerMemory : public PeerMemory {
 public:
  CudaPeerMemory(std::unique_ptr<NamedCommunicator> named, at::Tensor memory,
                 c10::intrusive_ptr<symmetric::SymmetricMemory> handle, std::chrono::milliseconds timeout)
      : named_(std::move(named)),
        memory_(std::move(memory)),
        handle_(std::move(handle)),
        timeout_ms_(static_cast<size_t>(timeout.count())),
        side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, memory_.device().index())),
        waited_(static_cast<size_t>(handle_->get_world_size())) {}

  int64_t rank() const override { return handle_->get_rank(); }
  int64_t size() const override { return handle_->get_world_size(); }
  int64_t capacity() const override { return memory_.numel(); }

  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    const auto each = static_cast<int64_t>(c10::elementSize(type));
    const int64_t bytes = c10::multiply_integers(shape) * each;
    TITAN_CHECK(offset % each == 0 && offset + bytes <= capacity(), owner, offset, bytes);
    return handle_->get_buffer(static_cast<int>(owner), shape, type, offset / each);
  }

  void signal(int64_t peer, int channel) override { handle_->put_signal(static_cast<int>(peer), channel, timeout_ms_); }

  void wait(int64_t peer, int channel, uint64_t count) override {
    uint64_t& waited = waited_[static_cast<size_t>(peer)][static_cast<size_t>(channel)];
    TITAN_CHECK(count == waited + 1, peer, channel, count, waited);
    waited = count;
    handle_->wait_signal(static_cast<int>(peer), channel, timeout_ms_);
  }

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ms_ = static_cast<size_t>(timeout.count()); }

  Pending beside(std::function<void()> transfer) override {
    return std::make_unique<SideWork>(std::move(transfer), side_);
  }

 private:
  std::unique_ptr<NamedCommunicator> named_;
  at::Tensor memory_;
  c10::intrusive_ptr<symmetric::SymmetricMemory> handle_;
  size_t timeout_ms_;
  c10::cuda::CUDAStream side_;
  std::vector<std::array<uint64_t, kPeerChannels>> waited_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_cuda_peer_memory(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                                  int64_t rank, int64_t size, int64_t capacity,
                                                  std::chrono::milliseconds timeout, int64_t gpu) {
  try {
    auto named = std::make_unique<NamedCommunicator>(
        name, c10::make_intrusive<c10d::PrefixStore>("peer_memory/" + name, store), rank, size);
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    at::Tensor memory = symmetric::empty_strided_p2p({capacity}, {1}, at::kByte, device, name, std::nullopt);
    auto handle = symmetric::rendezvous(memory, name);
    return std::make_unique<CudaPeerMemory>(std::move(named), std::move(memory), std::move(handle), timeout);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    const bool by_number = reason.find("overlapping devices") != std::string::npos;
    throw Error(
        ExitCode::launcher,
        fmt::format("tensor-parallel communicator {} has no symmetric memory ({}); {}set "
                    "parallelism.enable_async_tensor_parallel = false",
                    name, reason.substr(0, reason.find('\n')),
                    by_number ? "ranks of it have GPUs of one number: set "
                                "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 where each sees its own GPU alone, or "
                              : ""));
  }
}

}  // namespace titan
