// The merge loop of every byte-pair tokenizer: repeatedly merges the adjacent pair with the lowest rank (leftmost of
// equals) until no known pair is left. Works on ids only, not on text. Immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "encode_buffers.h"

namespace titan {

struct Merge {
  int32_t left = -1;  ///< ids of the parts, ≥ 0
  int32_t right = -1;
  int32_t rank = 0;  ///< lower is merged first
  int32_t id = 0;    ///< of the merged token
};

class MergeTable {
 public:
  MergeTable() : MergeTable(std::vector<Merge>{}) {}
  /// If the same pair occurs more than once, the last merge counts.
  explicit MergeTable(const std::vector<Merge>& merges);

  /// Merges `parts` in place and returns the new length. A negative part is never merged. Quadratic for short
  /// sequences, O(n log n) for long ones.
  size_t merge(std::span<int32_t> parts) const;

 private:
  const Merge* find(int32_t left, int32_t right) const;
  size_t merge_short(std::span<int32_t> parts) const;
  size_t merge_long(std::span<int32_t> parts) const;

  std::vector<Merge> slots_;  // open addressing, keyed by the pair
};

// Byte-pair encoding by rank with a fixed list of byte strings: the core of tiktoken's and GPT-2's tokenizers. A piece
// that is a token gives that token; otherwise its bytes are merged. Immutable; knows nothing of pre-tokenization or
// special tokens.

class BytePairEncoder {
 public:
  /// `tokens[rank]` is the token's bytes; they are unique and non-empty and include all 256 single bytes (the file
  /// readers check this).
  explicit BytePairEncoder(std::vector<std::string> tokens);

  /// Appends the ids of one piece. Linear for short pieces, O(n log n) for long ones.
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  const std::string& token(int32_t rank) const { return tokens_[static_cast<size_t>(rank)]; }
  std::span<const std::string> tokens() const { return tokens_; }

  /// The rank of `bytes`, or kNone.
  int32_t rank_of(std::string_view bytes) const;

  static constexpr int32_t kNone = INT32_MAX;

 private:
  void build_string_table();
  void build_merges();

  std::vector<std::string> tokens_;
  int32_t byte_rank_[256];
  std::vector<int32_t> string_slots_;  // open addressing, keyed by the hash of the bytes: rank, or -1
  MergeTable merges_;
  size_t longest_ = 0;  // bytes of the longest token
};

// A cache of the ids of short pieces: natural text repeats its words, and a hit reads a single cache line.
// Direct-mapped with a fixed size: a new piece evicts the one in its slot. Not thread-safe.

class PieceCache {
 public:
  // Of one piece: an entry is a cache line of 24 bytes of key, the last of them the length, and a count with its ids.
  static constexpr size_t kMostBytes = 23;
  static constexpr size_t kMostIds = 9;

  /// The piece's bytes, zero-padded, with its length in the last byte: keys are equal if and only if the pieces are.
  using Key = std::array<uint64_t, 3>;

  explicit PieceCache(size_t slots_power_of_two = size_t{1} << 15) : entries_(slots_power_of_two) {}

  /// The key of text[begin, end), which has at most kMostBytes bytes.
  static Key key_of(std::string_view text, size_t begin, size_t end) {
    size_t length = end - begin;
    Key key{};
    if (begin + sizeof key <= text.size()) {  // three loads and masks instead of a copy of variable length
      std::memcpy(key.data(), text.data() + begin, sizeof key);
      for (size_t word = 0; word < key.size(); ++word) {
        size_t kept = length > word * 8 ? length - word * 8 : 0;
        if (kept < 8) key[word] &= (uint64_t{1} << (kept * 8)) - 1;
      }
    } else {
      std::memcpy(key.data(), text.data() + begin, length);
    }
    key[2] |= uint64_t{length} << 56;
    return key;
  }

  /// The low bits select the slot. Bytes at the end of a word change only the upper bits of the product, so those are
  /// folded in.
  static uint64_t hash_of(const Key& key) {
    const uint64_t mixed = (key[0] ^ key[1] * 0xC2B2AE3D27D4EB4Fu ^ key[2] * 0x165667B19E3779F9u) * 0x9E3779B97F4A7C15u;
    return mixed >> 32 ^ mixed >> 48;
  }

  /// Writes the piece's ids to `ids`, which must have room for kMostIds, and returns their number; 0 on a miss.
  size_t find(const Key& key, int32_t* ids) const {
    const Entry& entry = entries_[slot_of(key)];
    // Compares words: comparing the arrays would call memcmp, which costs more than the rest of the lookup.
    uint64_t difference = (entry.key[0] ^ key[0]) | (entry.key[1] ^ key[1]) | (entry.key[2] ^ key[2]);
    if (difference != 0) return 0;
    std::memcpy(ids, entry.ids.data(), sizeof entry.ids);
    return entry.count;
  }

  /// Stores the ids if there are at most kMostIds.
  void keep(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMostIds) return;
    Entry& entry = entries_[slot_of(key)];
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  struct alignas(64) Entry {
    Key key{};
    uint32_t count = 0;
    std::array<int32_t, kMostIds> ids{};
  };

  size_t slot_of(const Key& key) const { return static_cast<size_t>(hash_of(key)) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
};

// The hot loop of byte-pair tokenizers: encodes pieces, with a cache. Not thread-safe.

class CachedPieces {
 public:
  CachedPieces(PieceCache& cache, std::vector<int32_t>& ids) : cache_(cache), ids_(ids) {}

  /// Appends the ids of text[begin, end); `encode` appends the ids of an uncached piece to a vector.
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

  /// Call after the last piece.
  void flush() { ids_.flush(); }

 private:
  static_assert(PieceCache::kMostIds <= ReadyIds::kRoom);
  PieceCache& cache_;
  ReadyIds ids_;
};

}  // namespace titan
