// Peer memory in one segment of shared memory: counters first, then one buffer per rank.
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <future>

#include "shared_counter.h"
#include "shared_segment.h"
#include "titan/base/error.h"
#include "titan/distributed/peer_memory.h"

namespace titan {
namespace {

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

class ThreadWork : public PendingCollective {
 public:
  explicit ThreadWork(std::function<void()> work) : work_(std::async(std::launch::async, std::move(work))) {}
  void wait() override {
    if (work_.valid()) work_.get();
  }

 private:
  std::future<void> work_;
};

class SharedPeerMemory : public PeerMemory {
 public:
  SharedPeerMemory(std::string name, std::shared_ptr<SharedSegment> segment, int64_t rank, int64_t size,
                   int64_t capacity, std::chrono::milliseconds timeout)
      : name_(std::move(name)),
        segment_(std::move(segment)),
        rank_(rank),
        size_(size),
        capacity_(capacity),
        timeout_(timeout) {}

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  static int64_t counters_bytes(int64_t size) {
    return round_up(size * size * kPeerChannels * int64_t{sizeof(SharedCounter)}, 4096);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t capacity() const override { return capacity_; }

  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    TITAN_CHECK(owner >= 0 && owner < size_ && offset >= 0 && offset + bytes <= capacity_, owner, offset, bytes);
    char* data = segment_->data() + counters_bytes(size_) + owner * capacity_ + offset;
    // The view keeps the mapping alive.
    return at::from_blob(
        data, shape, [segment = segment_](void*) {}, at::TensorOptions(type));
  }

  void signal(int64_t peer, int channel) override { counter(rank_, peer, channel).raise(); }

  void wait(int64_t peer, int channel, uint64_t count) override {
    const std::chrono::milliseconds timeout = timeout_;
    if (counter(peer, rank_, channel).wait_for(static_cast<uint32_t>(count), timeout)) return;
    throw Error(ExitCode::peer_failure, fmt::format("rank {} of group {} sent nothing for {} s", peer, name_,
                                                    std::chrono::duration_cast<std::chrono::seconds>(timeout).count()));
  }

  Pending beside(std::function<void()> transfer) override { return std::make_unique<ThreadWork>(std::move(transfer)); }

 private:
  SharedCounter& counter(int64_t from, int64_t to, int channel) const {
    return reinterpret_cast<SharedCounter*>(segment_->data())[(from * size_ + to) * kPeerChannels + channel];
  }

  std::string name_;
  std::shared_ptr<SharedSegment> segment_;
  int64_t rank_;
  int64_t size_;
  int64_t capacity_;
  std::atomic<std::chrono::milliseconds> timeout_;  // transfers beside the caller read it
};

}  // namespace

std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout) {
  capacity = round_up(capacity, 4096);
  const std::string key = "peer_memory/" + name;
  std::shared_ptr<SharedSegment> segment;
  if (rank == 0) {
    // A new segment is full of zeros, and so are its counters.
    segment = with_remedy("set parallelism.enable_async_tensor_parallel = false", [&] {
      return SharedSegment::create(SharedPeerMemory::counters_bytes(size) + size * capacity);
    });
    store->set(key, segment->address());
  } else {
    store->wait({key}, timeout);
    segment = SharedSegment::open(store->get_to_str(key));
  }
  // The owner's descriptor stays open until all have it.
  if (store->add(key + "/open", 1) == size) store->set(key + "/all", "1");
  store->wait({key + "/all"}, timeout);
  return std::make_unique<SharedPeerMemory>(name, std::move(segment), rank, size, capacity, timeout);
}

}  // namespace titan
