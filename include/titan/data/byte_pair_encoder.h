// Byte-pair encoding by rank over a fixed list of byte strings: the core of tiktoken's and GPT-2's tokenizers.
// A piece that is itself a token gives that token; otherwise the neighbouring parts whose union has the lowest rank are
// merged, leftmost first, until no union is a token. Immutable; knows nothing of splitting or special tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  struct Union {  // two tokens whose concatenation is a token
    int32_t left = -1;
    int32_t right = -1;
    int32_t rank = kNone;
  };

  int32_t union_of(int32_t left, int32_t right) const;
  void build_string_table();
  void build_union_table();
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::vector<std::string> tokens_;
  int32_t byte_rank_[256];
  std::vector<int32_t> string_slots_;  // open addressing by the hash of the bytes: rank, or -1
  std::vector<Union> union_slots_;     // open addressing by the two ranks
  size_t longest_ = 0;                 // bytes of the longest token
};

}  // namespace titan
