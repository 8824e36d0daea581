#include "support/cuda_on_host.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string_view>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace titan::cuda_on_host {

Index3 thread_index, block_index;
dim3 block_dim, grid_dim;

namespace {

constexpr size_t kStackBytes = 128 << 10;

// ---- Switching stacks. swapcontext would ask the kernel for the signal mask each time, which costs ten times as much.

#ifdef __x86_64__
extern "C" void titan_switch_stack(void** save, void* resume);
asm(R"(
  .text
  .globl titan_switch_stack
  .type titan_switch_stack, @function
titan_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size titan_switch_stack, .-titan_switch_stack
)");

struct Context {
  void* stack_pointer = nullptr;

  void prepare(char* stack, void (*entry)()) {
    // As if titan_switch_stack had been called from `entry`: six registers, then where to return to. The stack is
    // aligned as after a call.
    auto* top = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + kStackBytes) & ~uintptr_t{15});
    *--top = 0;
    *--top = reinterpret_cast<uint64_t>(entry);
    top -= 6;
    std::fill(top, top + 6, uint64_t{0});
    stack_pointer = top;
  }
  void switch_to(Context& other) { titan_switch_stack(&stack_pointer, other.stack_pointer); }
};
#else
struct Context {
  ucontext_t context{};

  void prepare(char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  Wait wait = Wait::none;
  const char* file = nullptr;  // of the barrier it waits at
  int line = 0;
  uint64_t offered[2] = {0, 0};  // to the other lanes; exchanges take turns, so that one wait each is enough
  unsigned exchanges = 0;
  int64_t warp_epoch = 0;
  void* fake_stack = nullptr;
};

/// The block under way, and what outlives blocks: stacks, random order, sites.
struct Machine {
  std::vector<Fiber> fibers;
  Context scheduler;
  size_t running = 0;
  const std::function<void()>* body = nullptr;
  std::exception_ptr failure;
  std::mt19937_64 random{1};
  std::set<Site> met;
  Site lost;
  uint64_t block_number = 0;
  uint64_t launch_number = 0;
  int64_t block_epoch = 0;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  std::vector<DeviceMemory*> memory;
  Counted counted;
};

Machine& machine() {
  static Machine instance;
  return instance;
}

void begin_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}

void end_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack, [[maybe_unused]] size_t* bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, stack, bytes);
#endif
}

void to_scheduler() {
  Machine& m = machine();
  Fiber& fiber = m.fibers[m.running];
  begin_switch(fiber.wait == Wait::done ? nullptr : &fiber.fake_stack, m.scheduler_stack, m.scheduler_stack_bytes);
  fiber.context.switch_to(m.scheduler);
  end_switch(fiber.fake_stack, nullptr, nullptr);
}

void enter() {
  Machine& m = machine();
  end_switch(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
  try {
    (*m.body)();
  } catch (...) {
    m.failure = std::current_exception();
  }
  m.fibers[m.running].wait = Wait::done;
  to_scheduler();
}

void resume(size_t index) {
  Machine& m = machine();
  m.running = index;
  const auto thread = static_cast<unsigned>(index);
  thread_index = {thread % block_dim.x, thread / block_dim.x % block_dim.y, thread / block_dim.x / block_dim.y};
  Fiber& fiber = m.fibers[index];
  begin_switch(&m.scheduler_fake_stack, fiber.stack.get(), kStackBytes);
  m.scheduler.switch_to(fiber.context);
  end_switch(m.scheduler_fake_stack, nullptr, nullptr);
  if (m.failure) std::rethrow_exception(std::exchange(m.failure, nullptr));
}

[[noreturn]] void fail(const std::string& what) { throw KernelError(what); }

std::string place(const Fiber& fiber) { return std::string(fiber.file) + ":" + std::to_string(fiber.line); }

/// Lets [begin, end) go on when all wait for `why`. Throws when some do and others are gone or wait elsewhere.
bool release(size_t begin, size_t end, Wait why) {
  Machine& m = machine();
  const auto waits = [&](const Fiber& fiber) { return fiber.wait == why; };
  const auto first = m.fibers.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = m.fibers.begin() + static_cast<std::ptrdiff_t>(end);
  if (std::none_of(first, last, waits)) return false;
  if (!std::all_of(first, last, waits)) return false;
  for (auto it = first; it != last; ++it) {
    if (it->line != first->line || std::string_view(it->file) != first->file)
      fail("threads wait at different barriers: " + place(*first) + " and " + place(*it));
    it->wait = Wait::none;
    if (why == Wait::warp) ++it->warp_epoch;
  }
  if (why == Wait::block) ++m.block_epoch;
  return true;
}

bool run_warp(size_t begin, size_t end) {
  Machine& m = machine();
  bool moved = false;
  do {
    for (size_t i = begin; i < end; ++i) {
      if (m.fibers[i].wait != Wait::none) continue;
      resume(i);
      moved = true;
    }
  } while (release(begin, end, Wait::warp));
  return moved;
}

void run_block(size_t threads) {
  Machine& m = machine();
  ++m.block_number;
  m.block_epoch = 0;
  for (size_t i = 0; i < threads; ++i) {
    Fiber& fiber = m.fibers[i];
    if (!fiber.stack) fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
#ifdef __SANITIZE_ADDRESS__
    // What an abandoned launch left of its frames.
    if (fiber.wait != Wait::done) __asan_unpoison_memory_region(fiber.stack.get(), kStackBytes);
#endif
    fiber.context.prepare(fiber.stack.get(), &enter);
    fiber.wait = Wait::none;
    fiber.exchanges = 0;
    fiber.warp_epoch = 0;
  }
  std::vector<size_t> warps((threads + kWarp - 1) / kWarp);
  std::iota(warps.begin(), warps.end(), size_t{0});
  bool moved = true;
  while (moved) {
    moved = false;
    std::shuffle(warps.begin(), warps.end(), m.random);
    for (size_t warp : warps) moved |= run_warp(warp * kWarp, std::min(threads, (warp + 1) * kWarp));
    moved |= release(0, threads, Wait::block);
  }
  for (size_t i = 0; i < threads; ++i) {
    if (m.fibers[i].wait == Wait::done) continue;
    fail("a thread waits at " + place(m.fibers[i]) + " for others that ended or wait elsewhere");
  }
}

}  // namespace

Counted counted() { return machine().counted; }
void reset_counted() { machine().counted = {}; }
void set_order(uint64_t seed) { machine().random.seed(seed); }
std::vector<Site> barriers_met() { return {machine().met.begin(), machine().met.end()}; }
void forget_barriers_met() { machine().met.clear(); }
void lose_barrier(const Site& site) { machine().lost = site; }

DeviceMemory::DeviceMemory(size_t bytes) : block_(bytes + 2 * kGuard, 0xa5), marks_(bytes) {
  machine().memory.push_back(this);
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(block_.data(), kGuard);
  __asan_poison_memory_region(block_.data() + kGuard + bytes, kGuard);
#endif
}

DeviceMemory::~DeviceMemory() {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(block_.data(), block_.size());
#endif
  std::erase(machine().memory, this);
}

bool DeviceMemory::guards_intact() const {
#ifdef __SANITIZE_ADDRESS__
  return true;  // a write there would have ended the program
#else
  const auto intact = [](unsigned char byte) { return byte == 0xa5; };
  return std::all_of(block_.begin(), block_.begin() + kGuard, intact) &&
         std::all_of(block_.end() - kGuard, block_.end(), intact);
#endif
}

struct Marking {
  /// The marks of the bytes at `address`; null when no buffers are known.
  static unsigned char* find(const void* address, size_t bytes, bool writes) {
    Machine& m = machine();
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) fail("an access is not aligned to its width");
    if (m.memory.empty()) return nullptr;
    const auto* at = static_cast<const unsigned char*>(address);
    for (DeviceMemory* memory : m.memory) {
      if (at < memory->data() || at + bytes > memory->data() + memory->bytes()) continue;
      if (memory->marked_by_ != m.launch_number) {
        std::fill(memory->marks_.begin(), memory->marks_.end(), 0);
        memory->marked_by_ = m.launch_number;
      }
      return memory->marks_.data() + (at - memory->data());
    }
    fail(writes ? "a kernel writes outside of its buffers" : "a kernel reads outside of its buffers");
  }
};

void note(const void* address, size_t bytes, bool writes, bool counts) {
  unsigned char* marks = Marking::find(address, bytes, writes);
  if (!marks || !counts) return;
  Counted& total = machine().counted;
  const unsigned char bit = writes ? 2 : 1;
  for (size_t i = 0; i < bytes; ++i) {
    const bool again = marks[i] & bit;
    ++(writes ? (again ? total.rewritten : total.written) : (again ? total.reread : total.read));
    marks[i] |= bit;
  }
}

void note_word(const void* address, size_t bytes) {
  const unsigned char* marks = Marking::find(address, bytes, /*writes=*/false);
  if (marks && !(*marks & 1)) note(address, bytes, /*writes=*/false);
}

void wait(Wait why, const char* file, int line) {
  Machine& m = machine();
  m.met.insert({file, line});
  if (m.lost.line == line && m.lost.file == file) return;
  Fiber& fiber = m.fibers[m.running];
  fiber.wait = why;
  fiber.file = file;
  fiber.line = line;
  to_scheduler();
}

uint64_t exchange(uint64_t raw, unsigned mask, unsigned source_lane, const char* file, int line) {
  Machine& m = machine();
  if (mask != 0xffffffffu) fail("only shuffles of whole warps are supported");
  const size_t self = m.running;
  const size_t source = self / kWarp * kWarp + source_lane % kWarp;
  if ((self / kWarp + 1) * kWarp > m.fibers.size()) fail("a shuffle of a warp that the block has only a part of");
  Fiber& fiber = m.fibers[self];
  const unsigned turn = fiber.exchanges++ % 2;
  fiber.offered[turn] = raw;
  fiber.wait = Wait::warp;
  fiber.file = file;
  fiber.line = line;
  to_scheduler();
  return m.fibers[source].offered[turn];
}

void note_shared(SharedMark& mark, Touch touch, size_t index, const char* name) {
  Machine& m = machine();
  const bool writes = touch != Touch::read;
  const auto self = static_cast<int64_t>(m.running);
  const int64_t warp_epoch = m.fibers[m.running].warp_epoch;
  const auto what = [&] { return std::string(name) + "[" + std::to_string(index) + "]"; };
  // Threads of a warp are also ordered by what the warp has waited for.
  const auto races = [&](int64_t other, int64_t other_block_epoch, int64_t other_warp_epoch) {
    if (other < 0 || other == self || other_block_epoch != m.block_epoch) return false;
    return other / kWarp != self / kWarp || other_warp_epoch == warp_epoch;
  };
  if (mark.block != m.block_number) {
    if (!writes) fail("shared " + what() + " is read before anything is written to it");
    mark = {};
    mark.block = m.block_number;
  }
  const bool atomic_before = mark.atomic_block_epoch == m.block_epoch;
  if (touch == Touch::atomic && atomic_before) return;
  if (touch != Touch::atomic && atomic_before)
    fail("no barrier stands between an atomic on shared " + what() + " and another access");
  if (races(mark.writer, mark.writer_block_epoch, mark.writer_warp_epoch))
    fail("no barrier stands between a write of shared " + what() + " and another thread's access");
  if (writes) {
    const bool read_by_others = mark.many_readers && mark.reader_block_epoch == m.block_epoch;
    if (read_by_others || races(mark.reader, mark.reader_block_epoch, mark.reader_warp_epoch))
      fail("no barrier stands between a read of shared " + what() + " and another thread's write");
    if (touch == Touch::atomic) mark.atomic_block_epoch = m.block_epoch;
    mark.writer = self;
    mark.writer_block_epoch = m.block_epoch;
    mark.writer_warp_epoch = warp_epoch;
    return;
  }
  // Only a barrier of the block orders readers of several warps before a later writer.
  if (mark.reader_block_epoch != m.block_epoch || mark.reader < 0) {
    mark.many_readers = false;
  } else if (mark.reader / kWarp != self / kWarp) {
    mark.many_readers = true;
  }
  mark.reader = self;
  mark.reader_block_epoch = m.block_epoch;
  mark.reader_warp_epoch = warp_epoch;
}

// There is one machine: ranks that are threads of a process take turns.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& body) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Machine& m = machine();
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024) fail("blocks have 1 to 1024 threads, not " + std::to_string(threads));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    fail("the grid is larger than a GPU's, or empty");
  m.fibers.resize(threads);
  m.body = &body;
  ++m.launch_number;
  grid_dim = grid;
  block_dim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        run_block(threads);
      }
    }
  }
}

}  // namespace titan::cuda_on_host
