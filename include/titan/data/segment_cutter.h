// How Llama 3 bounds text before its expression cuts it (torchtitan.md section 6): no segment is endless, so no piece
// is. Pure text; knows nothing of pieces or tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace titan {

/// Cuts text into blocks of at most 400,000 characters, and each block so that no run of only whitespace or only
/// non-whitespace (as Python's str.isspace judges) exceeds 25,000 characters. Characters are code points.
class SegmentCutter {
 public:
  static constexpr int64_t kBlockCharacters = 400'000;
  static constexpr int64_t kRunCharacters = 25'000;

  /// `text` must be valid UTF-8 and outlive the cutter.
  explicit SegmentCutter(std::string_view text) : text_(text) {}

  /// The next segment, never empty; false at the end.
  bool next(std::string_view& segment);

 private:
  std::string_view text_;
  size_t begin_ = 0;      // of the next segment
  size_t run_begin_ = 0;  // of a run, or the rest of one after a cut; everything before is settled
  size_t block_end_ = 0;
};

}  // namespace titan
