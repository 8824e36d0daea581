// All of a text corpus, encoded on all cores, handed over in order: one thread reads and unpacks, several read records
// and encode, the caller's takes. What is under way is bounded in bytes, however large the corpus.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "text_files.h"
#include "titan/data/tokenizer.h"

namespace titan {

/// Some documents that lie one after the other in the corpus.
struct EncodedDocuments {
  struct Document {
    SourcePosition start;
    RecordText read;          ///< its text is gone: `text_bytes` is left of it
    int64_t text_bytes = 0;   ///< UTF-8, once it is repaired
    int64_t first_token = 0;  ///< in `ids`
    int64_t tokens = 0;       ///< 0 for a bad record
  };
  std::vector<Document> documents;
  std::vector<int32_t> ids;  ///< of all of them, with what begins and ends each; none without a tokenizer
  SourcePosition after;      ///< where the next document begins
};

/// Calls `take` with everything from `source`'s position to the end of its pass. `tokenizer` may be null: documents are
/// then only read. With one that reads no text, `text_field` is a list of ids (see read_ids). What a thread throws is
/// rethrown here once all that came before it has been taken.
void encode_all(TextFileSource& source, const std::string& text_field, const Tokenizer* tokenizer, int64_t threads,
                const std::function<void(const EncodedDocuments&)>& take);

/// As many threads as this process has processors.
int64_t default_encode_threads();

// Ids on their way into a vector: few at a time are written with a fixed size, which is much faster than growing a
// vector by one.

class ReadyIds {
 public:
  explicit ReadyIds(std::vector<int32_t>& ids) : ids_(ids) {}
  ReadyIds(const ReadyIds&) = delete;
  ReadyIds& operator=(const ReadyIds&) = delete;

  static constexpr size_t kRoom = 16;
  /// Where up to kRoom ids may be written.
  int32_t* room() { return &ready_[count_]; }
  /// Takes the first `count` of what was written there.
  void take(size_t count) {
    count_ += count;
    if (count_ + kRoom > ready_.size()) flush();
  }

  /// The vector, with all that was taken; more may be added to it.
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

// Working memory for callers on any number of threads: as many exist as were ever in use at once, and an idle one is
// used again, because what it has cached gets better with use.

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
