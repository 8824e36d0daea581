// Working memory of encoding: a buffer for a few ids at a time, and a pool of per-thread objects.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace titan {

// A buffer in front of a vector of ids: a few ids at a time are copied with a fixed size, which is much faster than
// push_back.

class ReadyIds {
 public:
  explicit ReadyIds(std::vector<int32_t>& ids) : ids_(ids) {}
  ReadyIds(const ReadyIds&) = delete;
  ReadyIds& operator=(const ReadyIds&) = delete;

  // Room for the ids of a cached piece, which are copied at once: at least PieceCache::kMostIds.
  static constexpr size_t kRoom = 16;
  /// Where up to kRoom ids may be written.
  int32_t* room() { return &ready_[count_]; }
  /// Keeps the first `count` ids written to room().
  void take(size_t count) {
    count_ += count;
    if (count_ + kRoom > ready_.size()) flush();
  }

  /// Moves all kept ids to the vector and returns it; more may be appended.
  std::vector<int32_t>& flush() {
    ids_.insert(ids_.end(), ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count_));
    count_ = 0;
    return ids_;
  }

 private:
  std::vector<int32_t>& ids_;
  std::array<int32_t, 1024> ready_;
  size_t count_ = 0;
};

// A pool of per-thread working memory: holds as many objects as were ever in use at once. Idle ones are reused, because
// their caches improve with use.

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

  /// An idle Scratch, or a new one from `make`, which returns a std::unique_ptr<Scratch>.
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
