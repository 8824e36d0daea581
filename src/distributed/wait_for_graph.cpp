#include "titan/distributed/wait_for_graph.h"

#include <algorithm>
#include <set>
#include <utility>

namespace titan {
namespace {

template <class Key>
void end_one(std::map<Key, int64_t>& waiting, const Key& key) {
  const auto found = waiting.find(key);
  if (found != waiting.end() && --found->second == 0) waiting.erase(found);
}

}  // namespace

void WaitForGraph::begin(int64_t rank) {
  const std::lock_guard lock(mutex_);
  if (!kept_) ++waiting_[rank];
}

void WaitForGraph::end(int64_t rank) {
  const std::lock_guard lock(mutex_);
  if (!kept_) end_one(waiting_, rank);
}

void WaitForGraph::begin(const Ranks& ranks) {
  const std::lock_guard lock(mutex_);
  if (!kept_) ++together_[ranks];
}

void WaitForGraph::end(const Ranks& ranks) {
  const std::lock_guard lock(mutex_);
  if (!kept_) end_one(together_, ranks);
}

void WaitForGraph::keep() {
  const std::lock_guard lock(mutex_);
  kept_ = true;
}

std::vector<int64_t> WaitForGraph::now() const {
  const std::lock_guard lock(mutex_);
  std::set<int64_t> ranks;
  for (const auto& [rank, count] : waiting_) ranks.insert(rank);
  for (const auto& [many, count] : together_) ranks.insert(many->begin(), many->end());
  for (const auto& [number, wait] : checked_) ranks.insert(wait.rank);
  return {ranks.begin(), ranks.end()};
}

int64_t WaitForGraph::begin_checked(int64_t rank, std::chrono::milliseconds response_timeout) {
  const std::lock_guard lock(mutex_);
  const int64_t number = next_number_++;
  if (!kept_) checked_.emplace(number, CheckedWait{rank, response_timeout, Clock::now() + response_timeout / 2});
  return number;
}

void WaitForGraph::end_checked(int64_t number) {
  const std::lock_guard lock(mutex_);
  if (!kept_) checked_.erase(number);
}

std::optional<std::chrono::milliseconds> WaitForGraph::health_check_due(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (kept_) return std::nullopt;  // a wait has failed: this rank is ending, and an answer would change nothing
  std::optional<std::chrono::milliseconds> due;
  for (auto& [number, wait] : checked_) {
    if (now < wait.next_check) continue;
    wait.next_check = now + wait.response_timeout / 2;
    due = due ? std::min(*due, wait.response_timeout) : wait.response_timeout;
  }
  return due;
}

void WaitForGraph::note_alive(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  lived_at_ = now;
}

bool WaitForGraph::were_alive_since(Clock::time_point then) const {
  const std::lock_guard lock(mutex_);
  return lived_at_ >= then;
}

BarrierWait::BarrierWait(std::shared_ptr<WaitForGraph> waits, int64_t rank, std::chrono::milliseconds response_timeout)
    : waits_(std::move(waits)) {
  if (waits_) number_ = waits_->begin_checked(rank, response_timeout);
}

BarrierWait::~BarrierWait() {
  if (waits_) waits_->end_checked(number_);
}

RankRuns::RankRuns(const std::vector<int64_t>& ascending) {
  for (const int64_t rank : ascending) {
    Run* const last = runs_.empty() ? nullptr : &runs_.back();
    if (last && last->first == last->last) last->step = rank - last->last;
    if (last && rank - last->last == last->step) {
      last->last = rank;
    } else {
      runs_.push_back({rank, rank, 1});
    }
  }
}

WaitAnswer answer_of(int64_t rank, std::vector<int64_t> ascending) {
  const auto place = std::lower_bound(ascending.begin(), ascending.end(), rank);
  if (!ascending.empty() && (place == ascending.end() || *place != rank)) ascending.insert(place, rank);
  return {rank, ascending};
}

WaitEnd end_of_waits(const std::vector<WaitAnswer>& answers, int64_t reporter) {
  std::map<int64_t, RankRuns> waits;
  for (const WaitAnswer& answer : answers) waits[answer.rank] = answer.waits_for;
  std::set<int64_t> reached{reporter}, silent, busy;
  std::set<RankRuns::Run> followed;  // ranks of one communicator answer with the same run: it is followed once
  std::vector<int64_t> next{reporter};
  while (!next.empty()) {
    const int64_t rank = next.back();
    next.pop_back();
    const auto found = waits.find(rank);
    if (found == waits.end()) {
      silent.insert(rank);
    } else if (found->second.empty()) {
      busy.insert(rank);
    } else {
      for (const RankRuns::Run& run : found->second.runs()) {
        if (!followed.insert(run).second) continue;
        for (int64_t waited_for = run.first; waited_for <= run.last; waited_for += run.step) {
          if (reached.insert(waited_for).second) next.push_back(waited_for);
        }
      }
    }
  }
  silent.erase(reporter);
  busy.erase(reporter);
  if (!silent.empty()) return {*silent.begin(), false};
  if (!busy.empty()) return {*busy.begin(), true};
  return {};
}

}  // namespace titan
