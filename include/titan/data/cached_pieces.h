// The loop that byte-pair tokenizers spend their time in: piece after piece, known ones from the cache. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "titan/data/piece_cache.h"
#include "titan/data/ready_ids.h"

namespace titan {

class CachedPieces {
 public:
  CachedPieces(PieceCache& cache, std::vector<int32_t>& ids) : cache_(cache), ids_(ids) {}

  /// Adds the ids of text[begin, end); `encode` appends those of a piece that is not cached to a vector.
  template <class Encode>
  void add(std::string_view text, size_t begin, size_t end, const Encode& encode) {
    const bool is_short = end - begin <= PieceCache::kMostBytes;
    PieceCache::Key key{};
    if (is_short) {
      key = PieceCache::key_of(text, begin, end);
      if (const size_t known = cache_.find(key, ids_.room()); known > 0) return ids_.take(known);
    }
    std::vector<int32_t>& ids = ids_.flush();
    const size_t before = ids.size();
    encode(text.substr(begin, end - begin), ids);
    if (is_short) cache_.keep(key, std::span(ids).subspan(before));
  }

  /// To be called after the last piece.
  void flush() { ids_.flush(); }

 private:
  static_assert(PieceCache::kMostIds <= ReadyIds::kRoom);
  PieceCache& cache_;
  ReadyIds ids_;
};

}  // namespace titan
