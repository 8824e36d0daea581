// Prefetches items on one background thread into a bounded queue. The thread owns all it uses (captured by the
// producing function), so a thread that hangs in a read of a dead file system can be detached safely.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "titan/base/bounded_queue.h"
#include "titan/base/process.h"

namespace titan {

template <class Item>
class PrefetchThread {
 public:
  using Queue = BoundedQueue<Item>;
  using Outcome = typename Queue::Outcome;
  using Seconds = typename Queue::Seconds;
  /// Makes the next item; nothing at the end. Its exceptions are rethrown by `take`.
  using Produce = std::function<std::optional<Item>()>;

  /// `patience`: how long the destructor waits for the current item before it detaches the thread.
  PrefetchThread(int64_t depth, Produce produce, Seconds patience = Seconds(2))
      : queue_(std::make_shared<Queue>(static_cast<size_t>(depth))), patience_(patience) {
    thread_ = std::thread([queue = queue_, produce = std::move(produce)] { fill(*queue, produce); });
  }

  ~PrefetchThread() {
    if (stop(patience_)) {
      thread_.join();
    } else {
      leave_thread_behind();
      thread_.detach();
    }
  }
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  /// Waits for the next item; `stalled` after `timeout`. Rethrows the thread's exception after the earlier items are
  /// taken.
  Outcome take(std::optional<Item>& item, Seconds timeout) { return queue_->take(item, timeout); }

  /// Ends the thread. False if it is still in the current item after `patience`: then it uses what it owns until that
  /// is there.
  bool stop(Seconds patience) {
    queue_->stop();
    return queue_->wait_for_end(patience);
  }

  /// Number of items that can be taken without waiting.
  int64_t ready() const { return static_cast<int64_t>(queue_->size()); }

 private:
  static void fill(Queue& queue, const Produce& produce) {
    std::exception_ptr thrown;
    try {
      while (queue.wait_for_room()) {
        std::optional<Item> item = produce();
        if (!item || !queue.push(std::move(*item))) break;
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    queue.end(thrown);
  }

  std::shared_ptr<Queue> queue_;
  Seconds patience_;
  std::thread thread_;
};

}  // namespace titan
