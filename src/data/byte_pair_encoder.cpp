#include "titan/data/byte_pair_encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

#include "titan/base/error.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

/// Above this a piece is merged with a heap: searching all pairs again after each merge would be quadratic.
constexpr size_t kShortPiece = 96;

size_t hash_pair(int32_t left, int32_t right) {
  uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  key *= 0x9E3779B97F4A7C15u;  // the golden ratio: neighbouring ranks spread over all upper bits
  return static_cast<size_t>(key ^ key >> 32);
}

}  // namespace

BytePairEncoder::BytePairEncoder(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (const std::string& token : tokens_) longest_ = std::max(longest_, token.size());
  build_string_table();
  for (int byte = 0; byte < 256; ++byte) {
    char c = static_cast<char>(byte);
    byte_rank_[byte] = rank_of({&c, 1});
    TITAN_CHECK(byte_rank_[byte] != kNone, byte);
  }
  build_union_table();
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

/// Every part that merging can reach is a token, so the unions that matter are the tokens cut in two tokens.
void BytePairEncoder::build_union_table() {
  std::vector<Union> unions;
  for (int32_t rank = 0; rank < size(); ++rank) {
    std::string_view bytes = token(rank);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      int32_t left = rank_of(bytes.substr(0, cut));
      int32_t right = left == kNone ? kNone : rank_of(bytes.substr(cut));
      if (right != kNone) unions.push_back({left, right, rank});
    }
  }
  union_slots_.assign(std::bit_ceil(unions.size() * 2 + 1), Union{});
  size_t mask = union_slots_.size() - 1;
  for (const Union& pair : unions) {
    size_t slot = hash_pair(pair.left, pair.right) & mask;
    while (union_slots_[slot].left >= 0) slot = (slot + 1) & mask;
    union_slots_[slot] = pair;
  }
}

inline int32_t BytePairEncoder::union_of(int32_t left, int32_t right) const {
  size_t mask = union_slots_.size() - 1;
  for (size_t slot = hash_pair(left, right) & mask;; slot = (slot + 1) & mask) {
    const Union& pair = union_slots_[slot];
    if (pair.left == left && pair.right == right) return pair.rank;
    if (pair.left < 0) return kNone;
  }
}

void BytePairEncoder::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (int32_t rank = rank_of(piece); rank != kNone) {
    ids.push_back(rank);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void BytePairEncoder::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> parts;
  std::array<int32_t, kShortPiece> unions;  // unions[i]: rank of parts[i] and parts[i + 1] together
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) parts[i] = byte_rank_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) unions[i] = union_of(parts[i], parts[i + 1]);
  while (count > 1) {
    auto last = unions.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    auto lowest = std::min_element(unions.begin(), last);  // the first of equals
    if (*lowest == kNone) break;
    auto at = static_cast<size_t>(lowest - unions.begin());
    parts[at] = *lowest;
    std::copy(parts.begin() + at + 2, parts.begin() + count, parts.begin() + at + 1);
    std::copy(unions.begin() + at + 1, last, unions.begin() + at);
    --count;
    if (at > 0) unions[at - 1] = union_of(parts[at - 1], parts[at]);
    if (at + 1 < count) unions[at] = union_of(parts[at], parts[at + 1]);
  }
  ids.insert(ids.end(), parts.begin(), parts.begin() + count);
}

void BytePairEncoder::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Part {  // a doubly linked list in one array; a part is named by its first byte's index
    int32_t rank;
    int32_t previous;
    int32_t next;
  };
  auto count = static_cast<int32_t>(piece.size());
  std::vector<Part> parts(piece.size());
  for (int32_t i = 0; i < count; ++i) parts[i] = {byte_rank_[static_cast<unsigned char>(piece[i])], i - 1, i + 1};

  // (rank of the union, index of its left part), smallest first. Entries are never removed: one whose union is no
  // longer what stands there is skipped when it comes up.
  using Candidate = std::pair<int32_t, int32_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  auto union_at = [&](int32_t left) {
    int32_t right = parts[left].next;
    return right < count ? union_of(parts[left].rank, parts[right].rank) : kNone;
  };
  auto consider = [&](int32_t left) {
    if (int32_t rank = union_at(left); rank != kNone) candidates.push({rank, left});
  };
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!candidates.empty()) {
    auto [rank, left] = candidates.top();
    candidates.pop();
    if (parts[left].rank < 0 || union_at(left) != rank) continue;
    int32_t right = parts[left].next;
    parts[left].rank = rank;
    parts[left].next = parts[right].next;
    if (parts[right].next < count) parts[parts[right].next].previous = left;
    parts[right].rank = -1;  // swallowed
    if (parts[left].previous >= 0) consider(parts[left].previous);
    consider(left);
  }
  for (int32_t i = 0; i < count; i = parts[i].next) ids.push_back(parts[i].rank);
}

}  // namespace titan
