// The Viterbi search of a unigram model.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "pre_tokenizer.h"
#include "sentencepiece_model.h"
#include "titan/base/error.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Type = SentencePiece::Type;

constexpr float kUnknownPenalty = 10.0f;   // as in the package (unigram_model.cc): ids depend on it
constexpr float kLargestSum = 100'000.0f;  // the package (0.2.3) resets larger sums, which changes their rounding
constexpr size_t kCachedWords = size_t{1} << 16;  // a power of two, as slots are masked: 4 MiB for a thread

uint64_t key_of_step(uint32_t node, unsigned char byte) { return (uint64_t{node} << 8 | byte) + 1; }

size_t hash_step(uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(key ^ key >> 32);
}

}  // namespace

UnigramEncoder::UnigramEncoder(const SentencePieceModel& model) : unknown_id_(model.unknown_id) {
  float lowest = FLT_MAX;
  for (const SentencePiece& piece : model.pieces) {
    if (piece.type == Type::normal) lowest = std::min(lowest, piece.score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  make_trie(model);
  scores_.resize(model.pieces.size());
  byte_ids_.assign(model.byte_fallback ? 256 : 0, -1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    // The package's bonus, so that a user-defined piece always wins.
    const bool user_defined = piece.type == Type::user_defined;
    scores_[i] = user_defined ? static_cast<float>(0.1 * static_cast<double>(piece.text.size() - 1)) : piece.score;
    if (piece.type == Type::unknown) scores_[i] = unknown_score_;
    if (user_defined || piece.type == Type::normal) insert(piece.text, id, scores_[i]);
    largest_score_ = std::max(largest_score_, std::abs(scores_[i]));
    if (piece.type != Type::byte) continue;
    // The first byte of an unknown character has its whole score; other byte pieces never contribute to a sum.
    const int byte = byte_of_piece(piece.text);
    byte_ids_[static_cast<size_t>(byte)] = id;
    const bool is_continuation = (byte & 0xC0) == 0x80;
    scores_[i] = is_continuation ? 0 : unknown_score_;
  }
}

/// Makes the table as small as a load of one half allows, so that searches hit the inner caches.
void UnigramEncoder::make_trie(const SentencePieceModel& model) {
  std::vector<std::string_view> sorted;
  for (const SentencePiece& piece : model.pieces) sorted.push_back(piece.text);
  std::sort(sorted.begin(), sorted.end());
  size_t nodes = 0;
  std::string_view before;
  for (const std::string_view piece : sorted) {
    const auto shared = std::mismatch(piece.begin(), piece.end(), before.begin(), before.end()).first - piece.begin();
    nodes += piece.size() - static_cast<size_t>(shared);
    before = piece;
  }
  slots_.resize(std::bit_ceil(nodes * 2 + 2));
  TITAN_CHECK(slots_.size() < kNoNode, slots_.size());
  first_.fill(kNoNode);
}

void UnigramEncoder::insert(std::string_view piece, int32_t id, float score) {
  uint32_t node = kNoNode;
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    const uint32_t next = place(node, byte);
    slots_[next].key = key_of_step(node, byte);
    if (node == kNoNode) first_[byte] = next;
    node = next;
  }
  if (node == kNoNode) return;
  slots_[node].id = id;
  slots_[node].score = score;
}

inline uint32_t UnigramEncoder::place(uint32_t node, unsigned char byte) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t key = key_of_step(node, byte);
  size_t slot = hash_step(key) & mask;
  while (slots_[slot].key != 0 && slots_[slot].key != key) slot = (slot + 1) & mask;
  return static_cast<uint32_t>(slot);
}

inline uint32_t UnigramEncoder::step(uint32_t node, unsigned char byte) const {
  const uint32_t next = place(node, byte);
  return slots_[next].key == 0 ? kNoNode : next;
}

/// Subtracts the sum at `begin` from all sums from there to `last`.
void UnigramEncoder::begin_again(size_t begin, size_t last, Pass& pass) {
  const float offset = pass.nodes_[begin].best;
  for (size_t i = begin; i <= last; ++i) {
    if (i == begin || pass.nodes_[i].begin >= 0) pass.nodes_[i].best -= offset;
  }
}

/// Fills pass.nodes_ for the stretch, with the initial sum `sum`.
void UnigramEncoder::search(std::string_view stretch, float sum, Pass& pass) const {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  pass.nodes_.assign(stretch.size() + 1, {0, -1, -1, kNone});
  pass.nodes_[0].best = sum;
  // As in Google's package, only a strictly better candidate replaces an earlier one: ids depend on how ties end.
  size_t frontier = 0;
  auto offer = [&](size_t begin, size_t end, int32_t id, float candidate) {
    Pass::Node& node = pass.nodes_[end];
    frontier = std::max(frontier, end);
    if (node.begin < 0 || candidate > node.best) {
      if (node.begin >= 0) node.runner_up = std::max(node.runner_up, node.best);
      node.best = candidate;
      node.id = id;
      node.begin = static_cast<int32_t>(begin);
    } else {
      node.runner_up = std::max(node.runner_up, candidate);
    }
  };
  for (size_t begin = 0; begin < stretch.size();) {
    const size_t character = utf8_length(static_cast<unsigned char>(stretch[begin]));
    if (std::abs(pass.nodes_[begin].best) > kLargestSum) begin_again(begin, frontier, pass);
    const float before = pass.nodes_[begin].best;
    bool known = false;
    size_t end = begin + 1;
    for (uint32_t node = first_[static_cast<unsigned char>(stretch[begin])]; node != kNoNode;
         node = step(node, static_cast<unsigned char>(stretch[end++]))) {
      if (const Slot& slot = slots_[node]; slot.id >= 0) {
        offer(begin, end, slot.id, slot.score + before);
        known = known || end - begin == character;
      }
      if (end == stretch.size()) break;
    }
    if (!known) offer(begin, begin + character, unknown_id_, unknown_score_ + before);
    begin += character;
  }
}

/// The smallest lead of the best segmentation over the runner-up.
float UnigramEncoder::margin_of(std::string_view stretch, const Pass& pass) const {
  float margin = std::numeric_limits<float>::infinity();
  for (size_t end = stretch.size(); end > 0; end = static_cast<size_t>(pass.nodes_[end].begin)) {
    margin = std::min(margin, pass.nodes_[end].best - pass.nodes_[end].runner_up);
  }
  return margin;
}

/// Stores the ends and ids of the best segmentation in found_, as pairs, first piece first.
void UnigramEncoder::collect(std::string_view stretch, Pass& pass) const {
  pass.found_.clear();
  for (size_t end = stretch.size(); end > 0; end = static_cast<size_t>(pass.nodes_[end].begin)) {
    pass.found_.push_back(pass.nodes_[end].id);
    pass.found_.push_back(static_cast<int32_t>(end));
  }
  std::reverse(pass.found_.begin(), pass.found_.end());
}

void UnigramEncoder::append_ids(std::string_view stretch, const Pass& pass, std::vector<int32_t>& ids) const {
  size_t begin = 0;
  for (size_t i = 0; i + 1 < pass.found_.size(); i += 2) {
    const auto end = static_cast<size_t>(pass.found_[i]);
    const int32_t id = pass.found_[i + 1];
    if (id == unknown_id_ && !byte_ids_.empty()) {
      for (char c : stretch.substr(begin, end - begin)) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    } else {
      ids.push_back(id);
    }
    begin = end;
  }
}

/// `sum` plus the scores of the word's ids, added in order.
inline float UnigramEncoder::sum_of(const Pass::Word& word, float sum) const {
  for (size_t i = 0; i < word.count; ++i) sum += scores_[static_cast<size_t>(word.ids[i])];
  return sum;
}

/// Searches the stretch in isolation and caches the result. A float32 sum of n numbers that stays below `reach` has an
/// error of at most n · reach · 2⁻²⁴. If the lead exceeds the errors of the best segmentation and its longest rival
/// together, the result is the same at any place in a text. The sum must also not be reset within the stretch.
void UnigramEncoder::keep(const PieceCache::Key& key, std::string_view stretch, Pass& pass, Pass::Word& word) const {
  search(stretch, 0, pass);
  collect(stretch, pass);
  word.key = key;
  word.most_sum = -1;
  std::vector<int32_t> ids;
  append_ids(stretch, pass, ids);
  if (ids.size() > Pass::kMostIds) return;
  word.count = static_cast<uint32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), word.ids.begin());
  // The sums differ if normalisation has written bytes that are not a character: their ids do not determine the sums.
  if (sum_of(word, 0) != pass.nodes_[stretch.size()].best) return;
  const size_t pieces = pass.found_.size() / 2;
  size_t characters = 0;
  for (size_t at = 0; at < stretch.size(); ++characters) at += utf8_length(static_cast<unsigned char>(stretch[at]));
  const float own_reach = 2 * static_cast<float>(characters) * largest_score_;
  const float most_reach = margin_of(stretch, pass) * 0x1p24f / static_cast<float>(pieces + characters);
  word.most_sum = std::min(most_reach, kLargestSum) - own_reach;
}

/// Repeats the sums of a cached word; false if rounding could change the result at the current sum.
inline bool UnigramEncoder::repeat(const Pass::Word& word, Pass& pass, ReadyIds& ids) const {
  if (!(std::abs(pass.sum_) < word.most_sum)) return false;
  static_assert(Pass::kMostIds <= ReadyIds::kRoom);
  std::memcpy(ids.room(), word.ids.data(), sizeof word.ids);
  pass.sum_ = sum_of(word, pass.sum_);
  ids.take(word.count);
  return true;
}

void UnigramEncoder::encode(std::string_view text, size_t begin, size_t end, Pass& pass, ReadyIds& ids) const {
  if (std::abs(pass.sum_) > kLargestSum) pass.sum_ = 0;
  const std::string_view stretch = text.substr(begin, end - begin);
  if (stretch.empty()) return;
  if (stretch.size() <= PieceCache::kMostBytes) {
    if (pass.words_.empty()) pass.words_.resize(kCachedWords);
    const PieceCache::Key key = PieceCache::key_of(text, begin, end);
    Pass::Word& word = pass.words_[PieceCache::hash_of(key) & (kCachedWords - 1)];
    const uint64_t difference = (word.key[0] ^ key[0]) | (word.key[1] ^ key[1]) | (word.key[2] ^ key[2]);
    if (difference != 0) keep(key, stretch, pass, word);
    if (repeat(word, pass, ids)) return;
  }
  search(stretch, pass.sum_, pass);
  collect(stretch, pass);
  append_ids(stretch, pass, ids.flush());
  pass.sum_ = pass.nodes_[stretch.size()].best;
}

}  // namespace titan
