// A queue between threads that holds a bounded amount. Thread-safe; one thread fills it, and any number empty it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace titan {

template <class Item>
class BoundedQueue {
 public:
  using Seconds = std::chrono::duration<double>;

  /// There is room while the weights of the queued items are below `capacity` together.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// Waits until there is room; false if the queue was stopped.
  bool wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || weight_ < capacity_; });
    return !stopped_;
  }

  /// Adds an item, whether or not there is room. False if the queue was stopped.
  bool push(Item item, size_t weight = 1) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return false;
      items_.emplace_back(std::move(item), weight);
      weight_ += weight;
    }
    changed_.notify_all();  // unlocked: a woken waiter does not block on the mutex
    return true;
  }

  /// No item follows. `failure` is rethrown by `take` after the last one.
  void end(std::exception_ptr failure = nullptr) {
    std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    ended_ = true;
    changed_.notify_all();
  }

  /// Discards what is queued. Threads that wait return: `push` and `wait_for_room` with false, `take` with nothing.
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  /// Waits for `end`; false after `patience`.
  bool wait_for_end(Seconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return ended_; });
  }

  enum class Outcome { item, end, stalled };

  /// Waits for the next item; `stalled` after `timeout`.
  Outcome take(std::optional<Item>& item, Seconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return can_take(); })) return Outcome::stalled;
    item = take_first(lock);
    return item ? Outcome::item : Outcome::end;
  }

  /// Waits for the next item; nothing at the end.
  std::optional<Item> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return can_take(); });
    return take_first(lock);
  }

  /// Number of items that can be taken without waiting.
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  bool can_take() const { return stopped_ || ended_ || !items_.empty(); }

  std::optional<Item> take_first(std::unique_lock<std::mutex>& lock) {
    if (stopped_) return std::nullopt;
    if (items_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    std::optional<Item> item(std::move(items_.front().first));
    weight_ -= items_.front().second;
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Item, size_t>> items_;
  size_t weight_ = 0;
  bool ended_ = false, stopped_ = false;
  std::exception_ptr failure_;
};

}  // namespace titan
