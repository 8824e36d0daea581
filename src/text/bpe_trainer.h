// Learns a byte-pair vocabulary from text: counts words once, then repeatedly merges the most frequent pair.
// Incremental: a merge updates only the words that contain the pair, and a heap gives the next pair.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "piece_splitter.h"

namespace titan {

class BpeTrainer {
 public:
  /// Counts the pieces (Llama 3's splitting) of a text; malformed UTF-8 is replaced first.
  void add(std::string_view text);

  int64_t text_bytes() const { return text_bytes_; }
  int64_t distinct_pieces() const { return static_cast<int64_t>(counts_.size()); }

  /// The tokens by rank: the 256 single bytes, then `size` − 256 merges, most frequent first. Depends only on the
  /// counts: among equally frequent pairs, the lower ids win. Throws Error(bad_data) if size < 256 or if too few pairs
  /// occur at least twice.
  std::vector<std::string> train(int64_t size) const;

 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  PieceSplitter splitter_;
  PieceSplitter::Scratch scratch_{splitter_};
  std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>> counts_;
  int64_t text_bytes_ = 0;
};

}  // namespace titan
