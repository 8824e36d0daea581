// The merging at the heart of every byte-pair tokenizer: of neighbouring parts whose union is known the pair of the
// lowest rank is merged, leftmost of equals, until no union is left. Knows ids only, no text. Immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "encode_pipeline.h"

namespace titan {

struct Merge {
  int32_t left = -1;  ///< ids of the parts, ≥ 0
  int32_t right = -1;
  int32_t rank = 0;  ///< lower goes first
  int32_t id = 0;    ///< of the union
};

class MergeTable {
 public:
  MergeTable() : MergeTable(std::vector<Merge>{}) {}
  /// Of several merges of the same two parts the last counts.
  explicit MergeTable(const std::vector<Merge>& merges);

  /// Merges `parts` in place and returns how many are left, at its front. A negative part merges with nothing.
  /// Quadratic in short sequences, O(n log n) in long ones.
  size_t merge(std::span<int32_t> parts) const;

 private:
  const Merge* find(int32_t left, int32_t right) const;
  size_t merge_short(std::span<int32_t> parts) const;
  size_t merge_long(std::span<int32_t> parts) const;

  std::vector<Merge> slots_;  // open addressing by the two parts
};

// Byte-pair encoding by rank over a fixed list of byte strings: the core of tiktoken's and GPT-2's tokenizers.
// A piece that is itself a token gives that token; otherwise its bytes are merged. Immutable; knows nothing of
// splitting or special tokens.

class BytePairEncoder {
 public:
  /// `tokens[rank]` is the token's bytes; all differ, none is empty, and all 256 single bytes are among them
  /// (the file readers see to it).
  explicit BytePairEncoder(std::vector<std::string> tokens);

  /// Appends the ids of one piece. Linear in short pieces, O(n log n) in long ones.
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  const std::string& token(int32_t rank) const { return tokens_[static_cast<size_t>(rank)]; }
  std::span<const std::string> tokens() const { return tokens_; }

  /// The rank of these bytes, or kNone.
  int32_t rank_of(std::string_view bytes) const;

  static constexpr int32_t kNone = INT32_MAX;

 private:
  void build_string_table();
  void build_merges();

  std::vector<std::string> tokens_;
  int32_t byte_rank_[256];
  std::vector<int32_t> string_slots_;  // open addressing by the hash of the bytes: rank, or -1
  MergeTable merges_;
  size_t longest_ = 0;  // bytes of the longest token
};

// Remembers the ids of short pieces: natural text repeats its words, and one cache line answers for a word seen before.
// Direct-mapped and bounded: a new piece takes the place of the one with the same slot. Used by one thread at a time.

class PieceCache {
 public:
  static constexpr size_t kMostBytes = 23;  // of a piece
  static constexpr size_t kMostIds = 9;     // of its encoding

  /// The piece's bytes, zero-padded, with its length in the last byte: equal exactly when the pieces are.
  using Key = std::array<uint64_t, 3>;

  explicit PieceCache(size_t slots_power_of_two = size_t{1} << 15) : entries_(slots_power_of_two) {}

  /// Key of text[begin, end); at most kMostBytes long.
  static Key key_of(std::string_view text, size_t begin, size_t end) {
    size_t length = end - begin;
    Key key{};
    if (begin + sizeof key <= text.size()) {  // a whole key's worth of bytes is there: load it, mask what is too much
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

  /// The low bits are good for a slot: a byte at a word's end moves only the upper bits of the product, which are
  /// folded in.
  static uint64_t hash_of(const Key& key) {
    const uint64_t mixed = (key[0] ^ key[1] * 0xC2B2AE3D27D4EB4Fu ^ key[2] * 0x165667B19E3779F9u) * 0x9E3779B97F4A7C15u;
    return mixed >> 32 ^ mixed >> 48;
  }

  /// Writes the piece's ids to `ids`, where there must be room for kMostIds, and returns how many they are; 0 when the
  /// piece is not here.
  size_t find(const Key& key, int32_t* ids) const {
    const Entry& entry = entries_[slot_of(key)];
    // By words: comparing the arrays would call memcmp, which costs more than all the rest here.
    uint64_t difference = (entry.key[0] ^ key[0]) | (entry.key[1] ^ key[1]) | (entry.key[2] ^ key[2]);
    if (difference != 0) return 0;
    std::memcpy(ids, entry.ids.data(), sizeof entry.ids);
    return entry.count;
  }

  /// Keeps the ids when they are few enough.
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

// The loop that byte-pair tokenizers spend their time in: piece after piece, known ones from the cache. One thread.

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
