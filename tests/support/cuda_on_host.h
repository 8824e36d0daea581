// Runs plain CUDA C++ kernels on the host, so that their results and barriers are tested where there is no GPU. The
// threads of a block are fibers of one thread of the host, and a fiber runs until it waits. Warps come in a random
// order and each goes as far as it can before the next, so that a missing barrier shows. Include it before the kernel's
// header. One-dimensional blocks of whole warps; whole-warp exchanges; static shared memory; atomics. Not for speed.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

namespace titan::cuda_on_host {

struct Index {
  unsigned x = 0;
};

enum class Wait { none, warp, block, done };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  unsigned thread = 0;
  Wait wait = Wait::none;
  uint64_t offered = 0;  // to the other lanes
};

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

/// One block under way. CUDA's built-in names are global, so what they stand for is too: see `current`.
class Block {
 public:
  Block(unsigned threads, uint64_t seed, std::function<void()> body)
      : fibers_(threads), random_(seed), body_(std::move(body)) {
    if (threads % kWarp != 0) throw std::invalid_argument("blocks are of whole warps");
  }

  void run();
  void wait(Wait why) {
    running_->wait = why;
    swapcontext(&running_->context, &scheduler_);
  }
  unsigned thread() const { return running_->thread; }

  template <class T>
  T exchange(T value, unsigned source_lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    Fiber* self = running_;
    std::memcpy(&self->offered, &value, sizeof(T));
    wait(Wait::warp);
    const unsigned source = self->thread / kWarp * kWarp + source_lane % kWarp;
    std::memcpy(&value, &fibers_[source].offered, sizeof(T));
    wait(Wait::warp);
    return value;
  }

 private:
  static void enter();
  static void prepare(Fiber& fiber);
  bool run_warp(size_t warp);
  bool release(size_t begin, size_t end, Wait why);

  std::vector<Fiber> fibers_;
  std::mt19937_64 random_;
  std::function<void()> body_;
  ucontext_t scheduler_{};
  Fiber* running_ = nullptr;
};

inline Block* current = nullptr;
inline Index block_index, block_dim, grid_dim;
inline Index thread_index() { return {current->thread()}; }

inline void Block::enter() {
  current->body_();
  current->wait(Wait::done);
}

/// Lets [begin, end) go on when all that are not done wait for `why`, and some do.
inline bool Block::release(size_t begin, size_t end, Wait why) {
  bool any = false;
  for (size_t i = begin; i < end; ++i) {
    if (fibers_[i].wait != why && fibers_[i].wait != Wait::done) return false;
    any |= fibers_[i].wait == why;
  }
  for (size_t i = begin; i < end; ++i) {
    if (fibers_[i].wait == why) fibers_[i].wait = Wait::none;
  }
  return any;
}

inline bool Block::run_warp(size_t warp) {
  const size_t begin = warp * kWarp;
  bool moved = false;
  do {
    for (size_t i = begin; i < begin + kWarp; ++i) {
      if (fibers_[i].wait != Wait::none) continue;
      running_ = &fibers_[i];
      swapcontext(&scheduler_, &running_->context);
      moved = true;
    }
  } while (release(begin, begin + kWarp, Wait::warp));
  return moved;
}

inline void Block::prepare(Fiber& fiber) {
  fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber.context, &Block::enter, 0);
}

inline void Block::run() {
  current = this;
  for (unsigned i = 0; i < fibers_.size(); ++i) {
    fibers_[i].thread = i;
    prepare(fibers_[i]);
  }
  std::vector<size_t> warps(fibers_.size() / kWarp);
  for (size_t i = 0; i < warps.size(); ++i) warps[i] = i;
  bool moved = true;
  while (moved) {
    moved = false;
    std::shuffle(warps.begin(), warps.end(), random_);
    for (size_t warp : warps) moved |= run_warp(warp);
    moved |= release(0, fibers_.size(), Wait::block);
  }
  const auto done = [](const Fiber& fiber) { return fiber.wait == Wait::done; };
  if (!std::all_of(fibers_.begin(), fibers_.end(), done))
    throw std::runtime_error("threads wait at different barriers");
}

/// kernel<<<blocks, threads>>>(arguments...), block after block. Throws when threads wait for each other in vain.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, uint64_t seed, Arguments... arguments) {
  grid_dim = {blocks};
  block_dim = {threads};
  for (unsigned i = 0; i < blocks; ++i) {
    block_index = {i};
    Block(threads, seed + i, [&] { kernel(arguments...); }).run();
  }
}

}  // namespace titan::cuda_on_host

#define threadIdx titan::cuda_on_host::thread_index()
#define blockIdx titan::cuda_on_host::block_index
#define blockDim titan::cuda_on_host::block_dim
#define gridDim titan::cuda_on_host::grid_dim

inline void __syncthreads() { titan::cuda_on_host::current->wait(titan::cuda_on_host::Wait::block); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return titan::cuda_on_host::current->exchange(value, threadIdx.x ^ static_cast<unsigned>(mask));
}

template <class T>
T atomicAdd(T* address, T amount) {
  const T before = *address;
  *address += amount;
  return before;
}
