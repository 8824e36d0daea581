#include "titan/distributed/overdue_watch.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "titan/distributed/own_device.h"

namespace titan {

OverdueWatch::OverdueWatch(Overdue overdue, std::chrono::milliseconds interval)
    : overdue_(std::move(overdue)), interval_(interval), thread_(on_own_device([this] { watch(); })) {}

OverdueWatch::~OverdueWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void OverdueWatch::add(std::function<bool()> is_complete, std::string what, std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  added_.push_back({std::move(is_complete), std::move(what), limit, Clock::now()});
}

std::string OverdueWatch::problem_of(const Work& work) {
  if (Clock::now() - work.since < work.limit) return {};
  const std::chrono::duration<double> limit = work.limit;
  return fmt::format("{} did not end within {:g} s: a rank hangs or is behind", work.what, limit.count());
}

void OverdueWatch::watch() {
  std::list<Work> open;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return ends_; })) {
    open.splice(open.end(), added_);
    lock.unlock();
    std::string problem;
    for (auto work = open.begin(); work != open.end() && problem.empty();) {
      try {
        if (work->is_complete()) {
          work = open.erase(work);
          continue;
        }
        problem = problem_of(*work);
      } catch (const std::exception& error) {
        problem = fmt::format("{} failed: {}", work->what, error.what());
      }
      ++work;
    }
    if (!problem.empty()) return overdue_(problem);
    lock.lock();
  }
}

}  // namespace titan
