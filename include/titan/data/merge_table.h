// The merging at the heart of every byte-pair tokenizer: of neighbouring parts whose union is known the pair of the
// lowest rank is merged, leftmost of equals, until no union is left. Knows ids only, no text. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace titan
