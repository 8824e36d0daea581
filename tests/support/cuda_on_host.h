// Runs plain CUDA C++ kernels on the host: the same .cu files, launched with their real grids and blocks, so that
// results, barriers and memory traffic are tested where there is no GPU. The threads of a block are fibers of one
// thread of the host; a fiber runs until it waits. Warps come in a random order and each goes as far as it can before
// the next. What is an error here although a GPU might get away with it: a shared element that one thread touches while
// another writes it with no barrier between them, or that nobody wrote; threads at different barriers, or gone while
// others wait; a shuffle that lanes miss; an access outside of the buffers a test made, or not aligned to its width.
// Not for speed: blocks run one after the other. Not supported: inline PTX, cooperative groups, textures.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#define TITAN_CUDA_ON_HOST 1
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
// The table of kernels has a name of its own here: a program of tests may hold that of the GPU's kernels too.
#define gpu_kernels host_kernels

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}  // NOLINT: CUDA's converts too
};

namespace titan::cuda_on_host {

constexpr unsigned kWarp = 32;

/// A kernel did what the head of this file lists.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A place in a kernel's source where threads wait for each other.
struct Site {
  std::string file;
  int line = 0;
  auto operator<=>(const Site&) const = default;
};

/// Bytes of the buffers of this file that launches touched; each launch counts a byte once in `read` and `written`, and
/// what it asks for again, which caches serve, in `reread` and `rewritten`. Atomics on single words are not counted.
struct Counted {
  int64_t read = 0;
  int64_t written = 0;
  int64_t reread = 0;
  int64_t rewritten = 0;
};

Counted counted();
void reset_counted();

/// The order in which warps run.
void set_order(uint64_t seed);
/// Barriers (of block and warp) that launches have met since the last call of forget_barriers_met.
std::vector<Site> barriers_met();
void forget_barriers_met();
/// From now on threads pass this barrier without waiting, as if it were not in the source; an empty file: none.
void lose_barrier(const Site& site);

/// Memory that kernels may touch: while any exists, nothing else is theirs. Guard bytes are on both sides.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  unsigned char* data() { return block_.data() + kGuard; }
  const unsigned char* data() const { return block_.data() + kGuard; }
  size_t bytes() const { return block_.size() - 2 * kGuard; }
  /// Nobody has written beside the memory.
  bool guards_intact() const;

 private:
  friend struct Marking;
  static constexpr size_t kGuard = 256;
  std::vector<unsigned char> block_;
  std::vector<unsigned char> marks_;  // per byte: 1 read, 2 written by the launch numbered `marked_by_`
  uint64_t marked_by_ = 0;
};

/// Numbers in DeviceMemory. Fresh ones are filled with bits that are a NaN in every format.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : memory_(count * sizeof(T)), count_(count) {
    std::memset(memory_.data(), 0xff, count * sizeof(T));
  }
  explicit Buffer(const std::vector<T>& values) : memory_(values.size() * sizeof(T)), count_(values.size()) {
    if (count_ > 0) std::memcpy(memory_.data(), values.data(), count_ * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  T operator[](size_t i) const { return data()[i]; }
  size_t size() const { return count_; }
  std::vector<T> values() const { return std::vector<T>(data(), data() + count_); }
  bool guards_intact() const { return memory_.guards_intact(); }

 private:
  DeviceMemory memory_;
  size_t count_;
};

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

// What kernels see and the launch sets. CUDA's names for them are global too.
extern Index3 thread_index, block_index;
extern dim3 block_dim, grid_dim;

enum class Wait : uint8_t { none, warp, block, done };

void note(const void* address, size_t bytes, bool writes, bool counts = true);
/// A read that counts the first time only.
void note_word(const void* address, size_t bytes);
void wait(Wait why, const char* file, int line);
/// Hands `raw` to the other lanes of the warp and returns what `source_lane` handed over.
uint64_t exchange(uint64_t raw, unsigned mask, unsigned source_lane, const char* file, int line);
void run_grid(dim3 grid, dim3 block, const std::function<void()>& body);

/// kernel<<<blocks, threads>>>(arguments...), warps in the order of `seed`, for a kernel that a test launches itself.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, uint64_t seed, Arguments... arguments) {
  set_order(seed);
  run_grid(dim3(blocks), dim3(threads), [&] { kernel(arguments...); });
}

template <class T>
T exchange_value(T value, unsigned mask, unsigned source_lane, const char* file, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t raw = 0;
  std::memcpy(&raw, &value, sizeof(T));
  raw = exchange(raw, mask, source_lane, file, line);
  std::memcpy(&value, &raw, sizeof(T));
  return value;
}

/// Who touched one shared element since when; throws for two threads of which one writes with no barrier between them.
struct SharedMark {
  uint64_t block = 0;  // number of the block the marks below are of; 0: never written
  int64_t writer = -1, writer_warp_epoch = 0, writer_block_epoch = 0;
  int64_t atomic_block_epoch = -1;  // atomics do not race with each other, but with what is none
  int64_t reader = -1, reader_warp_epoch = 0, reader_block_epoch = 0;
  bool many_readers = false;
};
enum class Touch : uint8_t { read, write, atomic };
void note_shared(SharedMark& mark, Touch touch, size_t index, const char* name);

/// An element of a shared array: reads and is assigned like a plain one.
template <class T>
class SharedElement {
 public:
  SharedElement(T& value, SharedMark& mark, size_t index, const char* name)
      : value_(value), mark_(mark), index_(index), name_(name) {}

  operator T() const {  // NOLINT: reads like an element
    note_shared(mark_, Touch::read, index_, name_);
    return value_;
  }
  SharedElement& operator=(const T& value) {
    note_shared(mark_, Touch::write, index_, name_);
    value_ = value;
    return *this;
  }
  SharedElement& operator=(const SharedElement& other) { return *this = static_cast<T>(other); }
  void add(const T& amount) {
    note_shared(mark_, Touch::atomic, index_, name_);
    value_ += amount;
  }

 private:
  T& value_;
  SharedMark& mark_;
  size_t index_;
  const char* name_;
};

template <class T>
class Shared {
 public:
  Shared(size_t count, const char* name) : values_(count), marks_(count), name_(name) {}

  SharedElement<T> operator[](size_t index) {
    if (index >= values_.size()) throw KernelError(std::string("outside of shared ") + name_);
    return {values_[index], marks_[index], index, name_};
  }

 private:
  std::vector<T> values_;
  std::vector<SharedMark> marks_;
  const char* name_;
};

}  // namespace titan::cuda_on_host

#define threadIdx titan::cuda_on_host::thread_index
#define blockIdx titan::cuda_on_host::block_index
#define blockDim titan::cuda_on_host::block_dim
#define gridDim titan::cuda_on_host::grid_dim

#define __syncthreads() titan::cuda_on_host::wait(titan::cuda_on_host::Wait::block, __FILE__, __LINE__)
#define __syncwarp() titan::cuda_on_host::wait(titan::cuda_on_host::Wait::warp, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes)                                                                        \
  titan::cuda_on_host::exchange_value(value, mask, (titan::cuda_on_host::thread_index.x % 32) ^ (lanes), __FILE__, \
                                      __LINE__)
#define __shfl_sync(mask, value, lane) titan::cuda_on_host::exchange_value(value, mask, lane, __FILE__, __LINE__)

template <class T>
T atomicAdd(T* address, T amount) {
  titan::cuda_on_host::note(address, sizeof(T), true, false);
  const T before = *address;
  *address += amount;
  return before;
}
template <class T>
T atomicMax(T* address, T value) {
  titan::cuda_on_host::note(address, sizeof(T), true, false);
  const T before = *address;
  if (value > before) *address = value;
  return before;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
