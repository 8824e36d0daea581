// Peer memory in a segment of the system's shared memory: counters first, then one buffer per rank. The segment has no
// name any more once all ranks have opened it, so that nothing is left behind however the run ends.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "titan/base/error.h"
#include "titan/distributed/peer_memory.h"

namespace titan {
namespace {

constexpr int64_t kLine = 64;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// A segment that this process has mapped.
class Segment {
 public:
  Segment(const std::string& name, int64_t bytes, bool create) : bytes_(bytes) {
    const int file = ::shm_open(name.c_str(), create ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, 0600);
    if (file < 0) fail("opened");
    // Taken now: memory that is missing is an error here and not a signal at the first touch.
    const int refused = create ? ::posix_fallocate(file, 0, bytes) : 0;
    void* address =
        refused ? MAP_FAILED : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (refused) errno = refused;
    const int why = errno;
    ::close(file);
    errno = why;
    if (address == MAP_FAILED) {
      if (create) ::shm_unlink(name.c_str());
      fail("taken");
    }
    address_ = static_cast<char*>(address);
  }
  ~Segment() { ::munmap(address_, static_cast<size_t>(bytes_)); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* at(int64_t offset) const { return address_ + offset; }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(ExitCode::launcher,
                fmt::format("{} bytes of shared memory could not be {}: {}; make /dev/shm larger, or set "
                            "parallelism.enable_async_tensor_parallel = false",
                            bytes_, what, std::strerror(errno)));
  }

  int64_t bytes_;
  char* address_ = nullptr;
};

class SharedPeerMemory : public PeerMemory {
 public:
  SharedPeerMemory(std::string name, std::shared_ptr<Segment> segment, int64_t rank, int64_t size, int64_t capacity,
                   std::chrono::milliseconds timeout)
      : name_(std::move(name)),
        segment_(std::move(segment)),
        rank_(rank),
        size_(size),
        capacity_(capacity),
        timeout_(timeout) {}

  static int64_t counters_bytes(int64_t size) { return round_up(size * size * kPeerChannels * kLine, 4096); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t capacity() const override { return capacity_; }

  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    TITAN_CHECK(owner >= 0 && owner < size_ && offset >= 0 && offset + bytes <= capacity_, owner, offset, bytes);
    char* data = segment_->at(counters_bytes(size_) + owner * capacity_ + offset);
    // The view keeps the mapping alive.
    return at::from_blob(
        data, shape, [segment = segment_](void*) {}, at::TensorOptions(type));
  }

  void signal(int64_t peer, int channel) override {
    counter(rank_, peer, channel).fetch_add(1, std::memory_order_release);
  }

  void wait(int64_t peer, int channel, uint64_t count) override {
    const std::atomic<uint64_t>& seen = counter(peer, rank_, channel);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (int64_t tries = 0; seen.load(std::memory_order_acquire) < count; ++tries) {
      // The peer may need this very processor.
      tries < 64 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (tries % 1024 == 1023 && std::chrono::steady_clock::now() > deadline) {
        throw Error(ExitCode::peer_failure,
                    fmt::format("rank {} of group {} sent nothing for {} s", peer, name_,
                                std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()));
      }
    }
  }

 private:
  std::atomic<uint64_t>& counter(int64_t from, int64_t to, int channel) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(
        segment_->at(((from * size_ + to) * kPeerChannels + channel) * kLine));
  }

  std::string name_;
  std::shared_ptr<Segment> segment_;
  int64_t rank_;
  int64_t size_;
  int64_t capacity_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters are shared between processes");
  capacity = round_up(capacity, 4096);
  const int64_t bytes = SharedPeerMemory::counters_bytes(size) + size * capacity;
  const std::string key = "peer_memory/" + name;
  std::shared_ptr<Segment> segment;
  std::string shared_name;
  if (rank == 0) {
    // A new segment is full of zeros, and so are its counters.
    shared_name = fmt::format("/titan-{}-{:x}", ::getpid(),
                              std::hash<std::string>{}(key) ^ reinterpret_cast<uintptr_t>(&segment));
    segment = std::make_shared<Segment>(shared_name, bytes, /*create=*/true);
    store->set(key, shared_name);
  } else {
    store->wait({key}, timeout);
    segment = std::make_shared<Segment>(store->get_to_str(key), bytes, /*create=*/false);
  }
  if (store->add(key + "/open", 1) == size) store->set(key + "/all", "1");
  store->wait({key + "/all"}, timeout);
  if (rank == 0) ::shm_unlink(shared_name.c_str());
  return std::make_unique<SharedPeerMemory>(name, std::move(segment), rank, size, capacity, timeout);
}

}  // namespace titan
