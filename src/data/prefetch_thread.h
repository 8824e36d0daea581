// Prefetches items on one background thread into a bounded queue. The thread owns all it uses (captured by the
// producing function), so a thread that hangs in a read of a dead file system can be detached safely.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace titan {

template <class Item>
class PrefetchThread {
 public:
  /// Makes the next item; nothing at the end. Its exceptions are rethrown by `take`.
  using Produce = std::function<std::optional<Item>()>;
  using Seconds = std::chrono::duration<double>;

  /// `patience`: how long the destructor waits for the current item before it detaches the thread.
  PrefetchThread(int64_t depth, Produce produce, Seconds patience = Seconds(2))
      : shared_(std::make_shared<Shared>()), patience_(patience) {
    shared_->depth = static_cast<size_t>(depth);
    shared_->produce = std::move(produce);
    thread_ = std::thread([shared = shared_] { shared->run(); });
  }

  ~PrefetchThread() {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
    bool ended = shared_->changed.wait_for(lock, patience_, [&] { return shared_->ended; });
    lock.unlock();
    ended ? thread_.join() : thread_.detach();
  }
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  enum class Outcome { item, end, stalled };

  /// Waits for the next item; `stalled` after `timeout`. Rethrows the thread's exception after the earlier items are
  /// taken.
  Outcome take(std::optional<Item>& item, Seconds timeout) {
    std::unique_lock lock(shared_->mutex);
    bool ready = shared_->changed.wait_for(lock, timeout, [&] { return !shared_->items.empty() || shared_->ended; });
    if (!ready) return Outcome::stalled;
    if (shared_->items.empty()) {
      if (shared_->failure) std::rethrow_exception(shared_->failure);
      return Outcome::end;
    }
    item = std::move(shared_->items.front());
    shared_->items.pop_front();
    lock.unlock();
    shared_->changed.notify_all();
    return Outcome::item;
  }

  /// Number of items that can be taken without waiting.
  int64_t ready() const {
    std::lock_guard lock(shared_->mutex);
    return static_cast<int64_t>(shared_->items.size());
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    size_t depth = 1;
    bool stopping = false;
    bool ended = false;
    std::exception_ptr failure;
    Produce produce;

    void run() {
      std::exception_ptr thrown;
      try {
        while (produce_one()) {
        }
      } catch (...) {
        thrown = std::current_exception();
      }
      std::lock_guard lock(mutex);
      failure = thrown;
      ended = true;
      changed.notify_all();
    }

    bool produce_one() {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || items.size() < depth; });
        if (stopping) return false;
      }
      std::optional<Item> item = produce();
      {
        std::lock_guard lock(mutex);
        if (!item || stopping) return false;
        items.push_back(std::move(*item));
      }
      changed.notify_all();  // unlocked: a woken waiter does not block on the mutex
      return true;
    }
  };

  std::shared_ptr<Shared> shared_;
  Seconds patience_;
  std::thread thread_;
};

}  // namespace titan
