#include "titan/data/byte_pair_encoder.h"

#include <algorithm>
#include <bit>

#include "titan/base/error.h"
#include "titan/base/philox.h"

namespace titan {

BytePairEncoder::BytePairEncoder(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (const std::string& token : tokens_) longest_ = std::max(longest_, token.size());
  build_string_table();
  for (int byte = 0; byte < 256; ++byte) {
    char c = static_cast<char>(byte);
    byte_rank_[byte] = rank_of({&c, 1});
    TITAN_CHECK(byte_rank_[byte] != kNone, byte);
  }
  build_merges();
}

void BytePairEncoder::build_string_table() {
  string_slots_.assign(std::bit_ceil(tokens_.size() * 2 + 1), -1);
  size_t mask = string_slots_.size() - 1;
  for (size_t rank = 0; rank < tokens_.size(); ++rank) {
    TITAN_CHECK(!tokens_[rank].empty() && rank_of(tokens_[rank]) == kNone, rank);
    size_t slot = name_key(tokens_[rank]) & mask;
    while (string_slots_[slot] >= 0) slot = (slot + 1) & mask;
    string_slots_[slot] = static_cast<int32_t>(rank);
  }
}

int32_t BytePairEncoder::rank_of(std::string_view bytes) const {
  if (bytes.size() > longest_) return kNone;
  size_t mask = string_slots_.size() - 1;
  for (size_t slot = name_key(bytes) & mask; string_slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (token(string_slots_[slot]) == bytes) return string_slots_[slot];
  }
  return kNone;
}

/// Every part that merging can reach is a token, so the merges that matter are the tokens cut in two tokens.
void BytePairEncoder::build_merges() {
  std::vector<Merge> merges;
  for (int32_t rank = 0; rank < size(); ++rank) {
    std::string_view bytes = token(rank);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      int32_t left = rank_of(bytes.substr(0, cut));
      int32_t right = left == kNone ? kNone : rank_of(bytes.substr(cut));
      if (right != kNone) merges.push_back({left, right, rank, rank});
    }
  }
  merges_ = MergeTable(merges);
}

void BytePairEncoder::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (int32_t rank = rank_of(piece); rank != kNone) {
    ids.push_back(rank);
    return;
  }
  const size_t before = ids.size();
  for (char c : piece) ids.push_back(byte_rank_[static_cast<unsigned char>(c)]);
  ids.resize(before + merges_.merge(std::span(ids).subspan(before)));
}

}  // namespace titan
