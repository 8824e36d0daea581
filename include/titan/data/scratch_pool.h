// Working memory for callers on any number of threads: as many exist as were ever in use at once, and an idle one is
// used again, because what it has cached gets better with use.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace titan {

template <class Scratch>
class ScratchPool {
 public:
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<Scratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease() {
      std::lock_guard lock(pool_.mutex_);
      pool_.idle_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  /// An idle Scratch, or what `make` returns: a std::unique_ptr<Scratch>.
  template <class Make>
  Lease borrow(const Make& make) {
    std::unique_ptr<Scratch> scratch;
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        scratch = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    return Lease(*this, scratch ? std::move(scratch) : make());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace titan
