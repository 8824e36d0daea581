// The loop that byte-pair tokenizers spend their time in: piece after piece, known ones from the cache. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "titan/data/piece_cache.h"

namespace titan {

/// Ids gather here first: known pieces are copied with a fixed size, which is much faster than growing a vector by one.
class CachedPieces {
 public:
  CachedPieces(PieceCache& cache, std::vector<int32_t>& ids) : cache_(cache), ids_(ids) {}
  CachedPieces(const CachedPieces&) = delete;
  CachedPieces& operator=(const CachedPieces&) = delete;

  /// Adds the ids of text[begin, end); `encode` appends those of a piece that is not cached to a vector.
  template <class Encode>
  void add(std::string_view text, size_t begin, size_t end, const Encode& encode) {
    const bool is_short = end - begin <= PieceCache::kMostBytes;
    PieceCache::Key key{};
    if (is_short) {
      key = PieceCache::key_of(text, begin, end);
      if (const size_t known = cache_.find(key, &ready_[count_]); known > 0) {
        count_ += known;
        if (count_ + PieceCache::kMostIds > ready_.size()) flush();
        return;
      }
    }
    flush();
    const size_t before = ids_.size();
    encode(text.substr(begin, end - begin), ids_);
    if (is_short) cache_.keep(key, std::span(ids_).subspan(before));
  }

  /// To be called after the last piece.
  void flush() {
    ids_.insert(ids_.end(), ready_.begin(), ready_.begin() + count_);
    count_ = 0;
  }

 private:
  PieceCache& cache_;
  std::vector<int32_t>& ids_;
  std::array<int32_t, 1024> ready_;
  size_t count_ = 0;
};

}  // namespace titan
