#include "titan/train/threads.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Threads beside those of tensor operations: reading data, saving checkpoints.
constexpr int64_t kOtherThreads = 2;

/// Bytes of the stacks of OpenMP's threads as its variables ask for them, with their text; 0: the system's default.
/// libgomp ignores a value that it cannot read, and ends the process with exit code 1 where there is no room for one.
struct StackSize {
  size_t bytes = 0;
  std::string text;
};

StackSize stacks_of_openmp() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    const char* const value = std::getenv(name);
    if (!value) continue;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(value, &end, 10);
    const std::string unit = to_lower(trim(end));
    const std::string_view units = "bkmg";
    const size_t power = unit.empty() ? 1 : units.find(unit);
    const bool is_read = end != value && unit.size() <= 1 && power != std::string_view::npos;
    if (!is_read || number > (std::numeric_limits<size_t>::max() >> (10 * power))) continue;
    return {static_cast<size_t>(number) << (10 * power), fmt::format("{} = {}", name, printable(trim(value)))};
  }
  return {};
}

/// Threads that wait until this object ends: how many can run at the same time beside the present ones.
class WaitingThreads {
 public:
  WaitingThreads() = default;
  WaitingThreads(const WaitingThreads&) = delete;
  WaitingThreads& operator=(const WaitingThreads&) = delete;
  ~WaitingThreads() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (const pthread_t thread : started_) ::pthread_join(thread, nullptr);
  }

  /// → how many of `count` were started. `stack` in bytes; 0: the default, also for what is too little.
  int64_t start(int64_t count, size_t stack) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    if (stack > 0) ::pthread_attr_setstacksize(&attributes, stack);
    int64_t number = 0;
    for (pthread_t thread{}; number < count && ::pthread_create(&thread, &attributes, wait, this) == 0; ++number) {
      started_.push_back(thread);
    }
    ::pthread_attr_destroy(&attributes);
    return number;
  }

 private:
  static void* wait(void* self) {
    auto& threads = *static_cast<WaitingThreads*>(self);
    std::unique_lock<std::mutex> lock(threads.mutex_);
    threads.changed_.wait(lock, [&] { return threads.is_over_; });
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::vector<pthread_t> started_;
};

void require_threads(int64_t threads) {
  // LibTorch has two pools, OpenMP's and XNNPACK's. Each counts the calling thread.
  const int64_t of_pool = threads - 1, wanted = 2 * of_pool + kOtherThreads;
  const StackSize stacks = stacks_of_openmp();
  int64_t started = 0;
  bool lacks_stacks = false;
  {
    WaitingThreads waiting;
    started = waiting.start(of_pool, stacks.bytes);
    lacks_stacks = started < of_pool && stacks.bytes > 0;
    if (started == of_pool) started += waiting.start(wanted - of_pool, 0);
  }
  if (started == wanted) return;
  const std::string limits = lacks_stacks ? stacks.text + ", " + task_limit() : task_limit();
  throw Error(ExitCode::out_of_memory,
              fmt::format("the system starts {} of the {} further threads that a run with training.threads = {} has "
                          "({}); raise the limit, or give fewer training.threads",
                          started, wanted, threads, limits));
}

int64_t counted_team() {
  int64_t team = 0;
#pragma omp parallel reduction(+ : team)
  team += 1;
  return team;
}

/// OpenMP's variables that limit a team, as they are set.
std::string limits_of_openmp() {
  std::vector<std::string> found;
  for (const char* name : {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_DYNAMIC"}) {
    if (const char* value = std::getenv(name)) found.push_back(fmt::format("{} = {}", name, value));
  }
  return found.empty() ? "" : fmt::format(" ({})", join(found, ", "));
}

}  // namespace

ThreadTeam use_threads(int64_t wanted) {
  require_threads(wanted);
  ::omp_set_dynamic(0);
  ThreadTeam team{wanted, {}};
  for (;;) {
    at::set_num_threads(static_cast<int>(team.threads));
    const int64_t real = std::min<int64_t>(counted_team(), at::get_num_threads());
    if (real >= team.threads) break;
    team.threads = real;
  }
  if (team.threads < wanted) {
    team.reason = fmt::format("OpenMP gives {} of {} threads{}", team.threads, wanted, limits_of_openmp());
  }
  return team;
}

}  // namespace titan
