#include "byte_pair_encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <tuple>

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

/// Every intermediate result of merging is a token, so the merges are all splits of a token into two tokens.
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

namespace {

/// Longer sequences are merged with a heap: searching all pairs again after each merge would be quadratic.
constexpr size_t kShort = 96;
constexpr int32_t kNoRank = INT32_MAX;

size_t hash_pair(int32_t left, int32_t right) {
  uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  key *= 0x9E3779B97F4A7C15u;  // the golden ratio: spreads neighbouring ids over all upper bits
  return static_cast<size_t>(key ^ key >> 32);
}

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) : slots_(std::bit_ceil(merges.size() * 2 + 1)) {
  const size_t mask = slots_.size() - 1;
  for (const Merge& merge : merges) {
    size_t slot = hash_pair(merge.left, merge.right) & mask;
    while (slots_[slot].left >= 0 && (slots_[slot].left != merge.left || slots_[slot].right != merge.right)) {
      slot = (slot + 1) & mask;
    }
    slots_[slot] = merge;
  }
}

inline const Merge* MergeTable::find(int32_t left, int32_t right) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_pair(left, right) & mask;; slot = (slot + 1) & mask) {
    const Merge& merge = slots_[slot];
    if (merge.left < 0) return nullptr;
    if (merge.left == left && merge.right == right) return &merge;
  }
}

size_t MergeTable::merge(std::span<int32_t> parts) const {
  return parts.size() <= kShort ? merge_short(parts) : merge_long(parts);
}

size_t MergeTable::merge_short(std::span<int32_t> parts) const {
  struct Union {
    int32_t rank;
    int32_t id;
  };
  std::array<Union, kShort> unions;
  size_t count = parts.size();
  auto consider = [&](size_t i) {
    const Merge* merge = find(parts[i], parts[i + 1]);
    unions[i] = merge ? Union{merge->rank, merge->id} : Union{kNoRank, -1};
  };
  for (size_t i = 0; i + 1 < count; ++i) consider(i);
  while (count > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      at = unions[i].rank < unions[at].rank ? i : at;  // ids depend on it: of equal ranks the leftmost merges first
    if (unions[at].rank == kNoRank) break;
    parts[at] = unions[at].id;
    std::copy(parts.begin() + at + 2, parts.begin() + count, parts.begin() + at + 1);
    std::copy(unions.begin() + at + 1, unions.begin() + count - 1, unions.begin() + at);
    --count;
    if (at > 0) consider(at - 1);
    if (at + 1 < count) consider(at);
  }
  return count;
}

size_t MergeTable::merge_long(std::span<int32_t> parts) const {
  // Linked, so that a merge does not move the parts behind it. A part's index is that of its start, so it stays valid.
  struct Part {
    int32_t previous;
    int32_t next;
    bool gone;
  };
  // Entries are never removed: a stale entry, whose parts have changed, is skipped when popped.
  struct Candidate {
    int32_t rank, at, left, right, id;
    bool operator<(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
  };
  const auto count = static_cast<int32_t>(parts.size());
  std::vector<Part> list(parts.size());
  for (int32_t i = 0; i < count; ++i) list[i] = {i - 1, i + 1, false};
  auto candidate_at = [&](int32_t at, Candidate& candidate) {
    const int32_t next = list[at].next;
    const Merge* merge = next < count ? find(parts[at], parts[next]) : nullptr;
    if (merge) candidate = {merge->rank, at, merge->left, merge->right, merge->id};
    return merge != nullptr;
  };
  std::vector<Candidate> first;
  Candidate candidate{};
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (candidate_at(i, candidate)) first.push_back(candidate);
  }
  std::priority_queue<Candidate> candidates({}, std::move(first));
  while (!candidates.empty()) {
    const Candidate top = candidates.top();
    candidates.pop();
    const int32_t next = list[top.at].next;
    if (list[top.at].gone || next >= count || parts[top.at] != top.left || parts[next] != top.right) continue;
    parts[top.at] = top.id;
    list[next].gone = true;
    list[top.at].next = list[next].next;
    if (list[next].next < count) list[list[next].next].previous = top.at;
    if (list[top.at].previous >= 0 && candidate_at(list[top.at].previous, candidate)) candidates.push(candidate);
    if (candidate_at(top.at, candidate)) candidates.push(candidate);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < count; i = list[i].next) parts[kept++] = parts[i];
  return kept;
}

}  // namespace titan
