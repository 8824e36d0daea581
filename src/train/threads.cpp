#include "titan/train/threads.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Threads beside those of tensor operations: reading data, saving checkpoints.
constexpr int64_t kOtherThreads = 2;

/// How many of `wanted` threads can run at the same time beside the present ones.
int64_t threads_that_start(int64_t wanted) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::vector<std::thread> started;
  try {
    while (std::ssize(started) < wanted) {
      started.emplace_back([&] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return is_over; });
      });
    }
  } catch (const std::system_error&) {  // the number says so
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    is_over = true;
  }
  changed.notify_all();
  for (std::thread& thread : started) thread.join();
  return std::ssize(started);
}

void require_threads(int64_t threads) {
  // LibTorch has two pools, OpenMP's and XNNPACK's. Each counts the calling thread.
  const int64_t wanted = 2 * (threads - 1) + kOtherThreads;
  const int64_t started = threads_that_start(wanted);
  if (started == wanted) return;
  throw Error(ExitCode::out_of_memory,
              fmt::format("the system starts {} of the {} further threads that a run with training.threads = {} has "
                          "({}); raise the limit, or give fewer training.threads",
                          started, wanted, threads, task_limit()));
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
