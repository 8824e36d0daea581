// Host memory in addition to the device's, for CPU offload and for offloaded activations and optimizer states: counted
// allocations, counted copies between host and device, and activations that are on the host between forward and
// backward. Without a GPU both are host memory, and the counts are the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace titan {

/// Caches freed blocks for the next request of the same size. A copy may still read a freed block, so its next user
/// must write on the stream of that copy, as HostOffload does.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  /// The underlying allocator: CUDA's, or any in tests.
  struct Source {
    void* (*allocate)(size_t bytes);
    void (*free)(void* block);
  };
  static Source cuda();

  explicit PinnedMemory(Source source = cuda()) : source_(source) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// Uninitialised and flat. The tensor may outlive this object.
  at::Tensor allocate(int64_t numel, at::ScalarType type);

 private:
  Source source_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_;
};

class MemoryArena {
 public:
  explicit MemoryArena(at::Device device, PinnedMemory::Source pinned = PinnedMemory::cuda())
      : device_(device), pinned_(std::make_shared<PinnedMemory>(pinned)) {}

  const at::Device& device() const { return device_; }
  /// Uninitialised and flat; freed like any tensor. `pinned`: pinned host memory, on a machine with a GPU.
  at::Tensor allocate(int64_t numel, at::ScalarType type, bool pinned = false);

  /// Bytes of the tensors alive now, and the largest value so far.
  int64_t held_bytes() const { return *held_; }
  int64_t peak_bytes() const { return peak_; }

 private:
  at::Device device_;
  std::shared_ptr<PinnedMemory> pinned_;
  std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
  int64_t peak_ = 0;
};

/// An asynchronous copy between host and device. Keeps both tensors alive until one of its two calls.
class AsyncCopy {
 public:
  AsyncCopy() = default;
  AsyncCopy(at::Tensor target, at::Tensor source, std::shared_ptr<c10::Event> done)
      : target_(std::move(target)), source_(std::move(source)), done_(std::move(done)) {}

  /// The device's current stream waits for the copy.
  void block_stream();
  /// The host waits for the copy.
  void synchronize();

 private:
  at::Tensor target_, source_;        // of one shape
  std::shared_ptr<c10::Event> done_;  // null on a CPU, where the copy is synchronous
};

/// Starts a copy of `source` to `target` (any shape, the same for both) between host and device on the stream `copies`
/// (created by the first call), after the work that is enqueued on the device's current stream. `then` enqueues more
/// work on `copies`, which counts as part of the copy. Between CPU tensors the copy is complete when this returns.
AsyncCopy copy_async(const at::Tensor& target, const at::Tensor& source, std::optional<c10::Stream>& copies,
                     const std::function<void()>& then = {});

/// Host memory, device memory and copies between them. If both are the same arena, offload is disabled.
class HostOffload {
 public:
  HostOffload(std::shared_ptr<MemoryArena> host, std::shared_ptr<MemoryArena> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  MemoryArena& host() { return *host_; }
  MemoryArena& device() { return *device_; }
  bool enabled() const { return host_ != device_; }

  /// copy_async on one stream per direction. A copy that reads what a copy in the other direction writes must be
  /// started after that copy's block_stream().
  AsyncCopy to_device(const at::Tensor& target, const at::Tensor& source, const std::function<void()>& then = {});
  AsyncCopy to_host(const at::Tensor& target, const at::Tensor& source);
  /// The host waits, once, for all copies to the host started so far, and for copies of `numbers` [at least one], which
  /// are not counted. Returns the copies; on a CPU `numbers` itself.
  std::vector<at::Tensor> wait_to_host(const std::vector<at::Tensor>& numbers);
  /// True if host memory should be pinned.
  bool pins() const { return enabled() && !device_->device().is_cpu(); }
  /// Bytes since the last reset.
  int64_t to_device_bytes() const { return to_device_bytes_; }
  int64_t to_host_bytes() const { return to_host_bytes_; }
  void reset() { to_device_bytes_ = to_host_bytes_ = 0; }

 private:
  std::optional<c10::Stream> copies_to_device_, copies_to_host_;  // created with the first copy
  std::shared_ptr<MemoryArena> host_;
  std::shared_ptr<MemoryArena> device_;
  int64_t to_device_bytes_ = 0;
  int64_t to_host_bytes_ = 0;
};

/// Offloaded tensors: whole storages on the host, and each tensor's view of its storage, so that tensors that shared
/// memory share it again after the restore.
struct OffloadedTensors {
  struct Block {
    at::Tensor host;    // [bytes]
    at::Tensor device;  // [bytes]; undefined until fetch()
    AsyncCopy copy_back;
  };
  struct View {
    int64_t block = -1;  // -1: the tensor was undefined
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // elements
    bool requires_grad = false;
  };
  std::vector<Block> blocks;
  std::vector<View> views;
};

class ActivationOffload {
 public:
  explicit ActivationOffload(std::shared_ptr<HostOffload> offload) : offload_(std::move(offload)) {}

  /// Starts the copies of `tensors` (any shapes) to the host, one per storage, and resets them. Their memory is free
  /// for work enqueued after the next call of offload() or fetch().
  OffloadedTensors offload(const std::vector<at::Tensor*>& tensors);
  /// Starts the copies back.
  void fetch(OffloadedTensors& offloaded);
  /// Restores the tensors, in the order given to offload(); frees the host memory.
  void wait_fetch(OffloadedTensors& offloaded, const std::vector<at::Tensor*>& tensors);

 private:
  void free_sources();

  std::shared_ptr<HostOffload> offload_;
  std::vector<AsyncCopy> copies_;  // of the last call of offload()
};

}  // namespace titan
