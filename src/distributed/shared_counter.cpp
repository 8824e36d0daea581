#include "shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <thread>

namespace titan {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t),
              "counters are shared between processes and given to the kernel");

// Not FUTEX_PRIVATE_FLAG: the sleepers are other processes.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit) {
  const timespec relative{.tv_sec = limit.count() / 1'000'000'000, .tv_nsec = limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &relative, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

void SharedCounter::raise() {
  value_.fetch_add(1);
  if (sleepers_.load() > 0) wake_all(value_);
}

bool SharedCounter::wait_for(uint32_t count, std::chrono::milliseconds timeout) {
  // The process that will raise it may need this very processor.
  for (int tries = 0; tries < 64; ++tries) {
    if (reached(count)) return true;
    std::this_thread::yield();
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sleepers_.fetch_add(1);
  bool arrived = false;
  while (true) {
    const uint32_t seen = value_.load();
    arrived = static_cast<int32_t>(seen - count) >= 0;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (arrived || left <= std::chrono::nanoseconds(0)) break;
    sleep_while(value_, seen, left);
  }
  sleepers_.fetch_sub(1);
  return arrived;
}

}  // namespace titan
