// Remembers the ids of short pieces: natural text repeats its words, and one cache line answers for a word seen before.
// Direct-mapped and bounded: a new piece takes the place of the one with the same slot. Used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace titan {

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

}  // namespace titan
