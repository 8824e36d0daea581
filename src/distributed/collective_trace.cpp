#include "titan/distributed/collective_trace.h"

#include <fmt/format.h>
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/distributed/own_device.h"

namespace titan {

CollectiveTrace::CollectiveTrace(int64_t capacity) : ring_(static_cast<size_t>(capacity)) {
  TITAN_CHECK(capacity >= 1, capacity);
}

int64_t CollectiveTrace::issued(const Communicator& communicator, Collective kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t number = count_++;
  Call& call = ring_[static_cast<size_t>(number) % ring_.size()];
  call.number = number;
  call.communicator = communicator.name();
  call.rank = communicator.rank();
  call.ranks = communicator.size();
  call.number_on_communicator = count_of_communicator_[communicator.name()]++;
  call.kind = kind;
  call.bytes = bytes;
  call.issued = Clock::now();
  call.waited = {};
  return number;
}

void CollectiveTrace::waited(int64_t number) {
  const std::lock_guard lock(mutex_);
  Call& call = ring_[static_cast<size_t>(number) % ring_.size()];
  if (call.number == number && call.waited == Clock::time_point{}) call.waited = Clock::now();
}

bool CollectiveTrace::is_empty() const {
  const std::lock_guard lock(mutex_);
  return count_ == 0;
}

std::string CollectiveTrace::json() const {
  const Clock::time_point now = Clock::now();
  const auto seconds_ago = [now](Clock::time_point then) { return std::chrono::duration<double>(now - then).count(); };
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<int64_t>(ring_.size());
  for (int64_t number = std::max<int64_t>(0, count_ - size); number < count_; ++number) {
    const Call& call = ring_[static_cast<size_t>(number) % ring_.size()];
    nlohmann::ordered_json shown{{"communicator", call.communicator},
                                 {"rank", call.rank},
                                 {"ranks", call.ranks},
                                 {"call", call.number_on_communicator},
                                 {"collective", name(call.kind)},
                                 {"bytes", call.bytes},
                                 {"issued", seconds_ago(call.issued)}};
    if (call.waited != Clock::time_point{}) shown["waited"] = seconds_ago(call.waited);
    calls.push_back(std::move(shown));
  }
  const nlohmann::ordered_json trace{{"time", wall_time()}, {"calls", std::move(calls)}};
  return trace.dump(/*indent=*/1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

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
