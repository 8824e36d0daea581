// Byte-pair encoding by rank over a fixed list of byte strings: the core of tiktoken's and GPT-2's tokenizers.
// A piece that is itself a token gives that token; otherwise its bytes are merged. Immutable; knows nothing of
// splitting or special tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/merge_table.h"

namespace titan {

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

}  // namespace titan
