#include "titan/distributed/peer_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <future>

#include "host_mailbox.h"
#include "titan/base/error.h"

namespace titan {
namespace {

[[noreturn]] void fail(const std::string& what, int why) {
  throw Error(ExitCode::launcher, fmt::format("{}: {}", what, std::strerror(why)));
}

/// A rank that fails closes its segments before it exits, and its next file may get the same descriptor. So the wrong
/// content behind an address is the owner's failure: reporting it as this rank's would hide the cause.
[[noreturn]] void fail_for_owner(long process) {
  throw Error(
      ExitCode::peer_failure,
      fmt::format("process {}, another rank of this host, has ended or has closed the memory that it shared", process));
}

uint64_t random_number() {
  uint64_t number = 0;
  if (::getentropy(&number, sizeof number) != 0) fail("the system gives no random numbers", errno);
  return number;
}

}  // namespace

SharedSegment::SharedSegment(int file, std::string address, int64_t bytes)
    : file_(file), address_(std::move(address)), bytes_(bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(kHead + bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) {
    const int why = errno;
    ::close(file_);
    fail(fmt::format("{} bytes of shared memory cannot be mapped", bytes_), why);
  }
  memory_ = static_cast<char*>(memory);
}

SharedSegment::~SharedSegment() {
  ::munmap(memory_, static_cast<size_t>(kHead + bytes_));
  ::close(file_);
}

std::shared_ptr<SharedSegment> SharedSegment::create(int64_t bytes) {
  const std::string taken = fmt::format("{} bytes of shared memory cannot be had", bytes);
  const int file = ::memfd_create("titan", MFD_CLOEXEC);
  if (file < 0) fail(taken, errno);
  if (const int refused = ::posix_fallocate(file, 0, kHead + bytes)) {
    ::close(file);
    fail(taken, refused);
  }
  const uint64_t nonce = random_number();
  std::string address = fmt::format("{}:{}:{}:{}", ::getpid(), file, bytes, nonce);
  std::shared_ptr<SharedSegment> segment(new SharedSegment(file, std::move(address), bytes));
  std::memcpy(segment->memory_, &nonce, sizeof nonce);
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(const std::string& address) {
  long process = 0;
  int owners_file = 0;
  long long bytes = 0;
  unsigned long long nonce = 0;
  const int read = std::sscanf(address.c_str(), "%ld:%d:%lld:%llu", &process, &owners_file, &bytes, &nonce);
  TITAN_CHECK(read == 4, address);
  const std::string path = fmt::format("/proc/{}/fd/{}", process, owners_file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) fail_for_owner(process);
  if (file < 0) fail("memory of another rank of this host (" + address + ") cannot be opened", errno);
  struct stat facts {};
  if (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size != kHead + bytes) {
    ::close(file);
    fail_for_owner(process);
  }
  std::shared_ptr<SharedSegment> segment(new SharedSegment(file, address, bytes));
  const auto expected = static_cast<uint64_t>(nonce);
  if (std::memcmp(segment->memory_, &expected, sizeof expected) != 0) fail_for_owner(process);
  return segment;
}

// Peer memory in one shared-memory segment: counters first, then one buffer per rank.

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
    throw Error(ExitCode::peer_failure, fmt::format("rank {} of communicator {} sent nothing for {} s", peer, name_,
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
  std::atomic<std::chrono::milliseconds> timeout_;  // also read by concurrent transfers
};

}  // namespace

std::unique_ptr<PeerMemory> make_shared_peer_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int64_t rank, int64_t size,
                                                    int64_t capacity, std::chrono::milliseconds timeout) {
  capacity = round_up(capacity, 4096);
  const std::string key = "peer_memory/" + name;
  std::shared_ptr<SharedSegment> segment;
  if (rank == 0) {
    // Counters need no initialisation, which others would have to wait for: a new segment is zeroed.
    segment = with_remedy("set parallelism.enable_async_tensor_parallel = false", [&] {
      return SharedSegment::create(SharedPeerMemory::counters_bytes(size) + size * capacity);
    });
    store->set(key, segment->address());
  } else {
    store->wait({key}, timeout);
    segment = SharedSegment::open(store->get_to_str(key));
  }
  // The owner keeps its descriptor open until all ranks have mapped the segment.
  if (store->add(key + "/open", 1) == size) store->set(key + "/all", "1");
  store->wait({key + "/all"}, timeout);
  return std::make_unique<SharedPeerMemory>(name, std::move(segment), rank, size, capacity, timeout);
}

// Peer memory of a dry run: shapes and sizes are real, peers are not.

namespace {

struct Done : PendingCollective {
  void wait() override {}
};

class FakePeerMemory : public PeerMemory {
 public:
  FakePeerMemory(int64_t rank, int64_t size, int64_t capacity, const at::Device& device)
      : rank_(rank), size_(size), memory_(at::zeros({capacity}, at::TensorOptions(device).dtype(at::kByte))) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t capacity() const override { return memory_.numel(); }

  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    TITAN_CHECK(owner >= 0 && owner < size_, owner, size_);
    return memory_.narrow(0, offset, bytes).view(type).view(shape);
  }

  void signal(int64_t, int) override {}
  void wait(int64_t, int, uint64_t) override {}
  void set_timeout(std::chrono::milliseconds) override {}

  Pending beside(std::function<void()> transfer) override {
    transfer();
    return std::make_unique<Done>();
  }

 private:
  int64_t rank_;
  int64_t size_;
  at::Tensor memory_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_fake_peer_memory(int64_t rank, int64_t size, int64_t capacity,
                                                  const at::Device& device) {
  return std::make_unique<FakePeerMemory>(rank, size, capacity, device);
}

}  // namespace titan
