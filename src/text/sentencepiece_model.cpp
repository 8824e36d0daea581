#include "sentencepiece_model.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <bitset>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "pre_tokenizer.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Field = ProtobufReader::Field;
using Type = SentencePiece::Type;

constexpr std::string_view kRemedy =
    "The file may be damaged or cut short: get it again, or give another model.tokenizer_path";

/// Parses the messages of one file; field numbers are those of sentencepiece_model.proto.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

  SentencePieceModel read() {
    const std::string bytes = read_file(path_, ExitCode::bad_data, kLongestTextFile);
    if (bytes.empty()) fail("the tokenizer file is empty");
    model_.fingerprint = name_key(bytes);
    for_each(bytes, "the model", [&](const Field& field) {
      if (field.number == 1) read_piece(content(field));
      if (field.number == 2) read_trainer(content(field));
      if (field.number == 3) read_normalizer(content(field));
      if (field.number == 5) check_denormalizer(content(field));
    });
    check();
    return std::move(model_);
  }

 private:
  [[noreturn]] void fail(std::string_view what, std::string_view remedy = kRemedy) const {
    throw Error(ExitCode::bad_data, fmt::format("tokenizer {}: {}. {}.", path_.string(), what, remedy));
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ExitCode::bad_data, fmt::format("tokenizer {}: {}, which {}.", path_.string(), what, kTokenizeOffline));
  }

  template <class Use>
  void for_each(std::string_view bytes, std::string_view what, const Use& use) {
    ProtobufReader reader(bytes);
    for (Field field; reader.next(field);) use(field);
    if (!reader.ok()) fail(fmt::format("{} is not a protocol buffer from its byte {} on", what, reader.position()));
  }

  std::string_view content(const Field& field) const {
    if (field.wire != Field::Wire::content) fail(fmt::format("field {} is of a wrong kind", field.number));
    return field.content;
  }
  uint64_t number(const Field& field) const {
    if (field.wire != Field::Wire::varint) fail(fmt::format("field {} is of a wrong kind", field.number));
    return field.value;
  }

  void read_piece(std::string_view bytes) {
    SentencePiece piece;
    const size_t id = model_.pieces.size();
    for_each(bytes, fmt::format("piece {}", id), [&](const Field& field) {
      if (field.number == 1) piece.text = content(field);
      if (field.number == 2) {
        if (field.wire != Field::Wire::fixed32) fail(fmt::format("the score of piece {} is not a number", id));
        piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
      }
      if (field.number == 3) {
        const uint64_t type = number(field);
        if (type < 1 || type > 6) fail(fmt::format("piece {} is of the unknown type {}", id, type));
        piece.type = static_cast<Type>(type);
      }
    });
    if (!std::isfinite(piece.score)) fail(fmt::format("the score of piece {} is not finite", id));
    model_.pieces.push_back(std::move(piece));
  }

  void read_trainer(std::string_view bytes) {
    for_each(bytes, "the trainer's part", [&](const Field& field) {
      if (field.number == 3) {
        const uint64_t kind = number(field);
        if (kind == 3) refuse("this is a model of whole words");
        if (kind == 4) refuse("this is a model of characters");
        if (kind < 1 || kind > 4) fail(fmt::format("the model has the unknown kind {}", kind));
        model_.kind = static_cast<SentencePieceModel::Kind>(kind);
      }
      if (field.number == 24) model_.whitespace_as_suffix = number(field) != 0;
      if (field.number == 35) model_.byte_fallback = number(field) != 0;
      if (field.number == 41) model_.has_bos = static_cast<int64_t>(number(field)) >= 0;
      if (field.number == 42) model_.has_eos = static_cast<int64_t>(number(field)) >= 0;
      if (field.number == 44) model_.unknown_surface = content(field);
      if (field.number == 46) model_.bos_piece = content(field);
      if (field.number == 47) model_.eos_piece = content(field);
    });
  }

  void read_normalizer(std::string_view bytes) {
    for_each(bytes, "the normaliser's part", [&](const Field& field) {
      if (field.number == 2) model_.charsmap = content(field);
      if (field.number == 3) model_.add_dummy_prefix = number(field) != 0;
      if (field.number == 4) model_.remove_extra_whitespaces = number(field) != 0;
      if (field.number == 5) model_.escape_whitespaces = number(field) != 0;
    });
  }

  void check_denormalizer(std::string_view bytes) {
    for_each(bytes, "the denormaliser's part", [&](const Field& field) {
      if (field.number == 2 && !content(field).empty()) refuse("it has a denormaliser");
    });
  }

  void check() {
    if (model_.pieces.empty()) fail("it has no pieces");
    std::unordered_set<std::string_view> texts, reserved;
    std::bitset<256> bytes;
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      const SentencePiece& piece = model_.pieces[id];
      if (piece.text.empty()) fail(fmt::format("piece {} is empty", id));
      if (valid_utf8_length(piece.text) != piece.text.size()) fail(fmt::format("piece {} is not UTF-8", id));
      const bool is_text = piece.type == Type::normal || piece.type == Type::user_defined || piece.type == Type::unused;
      if (!(is_text ? texts : reserved).insert(piece.text).second) {
        fail(fmt::format("piece {}, \"{}\", comes a second time", id, piece.text));
      }
      if (piece.type == Type::unused && model_.kind == SentencePieceModel::Kind::bpe) {
        refuse(fmt::format("piece {} is marked as unused in a BPE model", id));
      }
      if (piece.type == Type::unknown) {
        if (model_.unknown_id >= 0)
          fail(fmt::format("pieces {} and {} are both the unknown one", model_.unknown_id, id));
        model_.unknown_id = static_cast<int32_t>(id);
      }
      if (piece.type == Type::byte) {
        const int byte = byte_of_piece(piece.text);
        if (byte < 0 || !model_.byte_fallback) fail(fmt::format("piece {} is a byte where none can be", id));
        bytes.set(static_cast<size_t>(byte));
      }
    }
    if (model_.unknown_id < 0) fail("no piece is the unknown one");
    if (model_.byte_fallback && !bytes.all()) fail("some of the 256 byte pieces are missing");
  }

  std::filesystem::path path_;
  SentencePieceModel model_;
};

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) { return Reader(path).read(); }

bool looks_like_sentencepiece(std::string_view bytes) {
  ProtobufReader reader(bytes);
  // Two levels are read, since one field alone would match other binary files. `bytes` may end inside a later piece.
  Field piece, text;
  if (!reader.next(piece) || piece.number != 1 || piece.wire != Field::Wire::content) return false;
  return ProtobufReader(piece.content).next(text) && text.number == 1 && text.wire == Field::Wire::content;
}

std::vector<AddedToken> user_defined_pieces(const SentencePieceModel& model) {
  std::vector<AddedToken> tokens;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type != SentencePiece::Type::user_defined) continue;
    tokens.push_back({model.pieces[id].text, static_cast<int32_t>(id)});
  }
  return tokens;
}

int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int byte = -1;
  auto [end, problem] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  return problem == std::errc() && end == piece.data() + 5 ? byte : -1;
}

bool ProtobufReader::next(Field& field) {
  if (!ok_ || at_ == bytes_.size()) return false;
  ok_ = false;
  const std::optional<uint64_t> key = varint();
  if (!key || *key >> 3 == 0 || *key >> 3 > UINT32_MAX) return false;
  field = {};
  field.number = static_cast<uint32_t>(*key >> 3);
  field.wire = static_cast<Field::Wire>(*key & 7);
  switch (field.wire) {
    case Field::Wire::varint: {
      const std::optional<uint64_t> value = varint();
      if (value) field.value = *value;
      ok_ = value.has_value();
      break;
    }
    case Field::Wire::fixed64:
      ok_ = take(8, field.value);
      break;
    case Field::Wire::fixed32:
      ok_ = take(4, field.value);
      break;
    case Field::Wire::content: {
      const std::optional<uint64_t> length = varint();
      if (!length || *length > bytes_.size() - at_) return false;
      field.content = bytes_.substr(at_, *length);
      at_ += *length;
      ok_ = true;
      break;
    }
    default:  // groups: no model has them, so this is another kind of file
      return false;
  }
  return ok_;
}

std::optional<uint64_t> ProtobufReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes_[at_++]);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// Reads `count` bytes as a little-endian number.
bool ProtobufReader::take(size_t count, uint64_t& value) {
  if (count > bytes_.size() - at_) return false;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
  at_ += count;
  return true;
}

// The Viterbi search of a unigram model.

namespace {

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

/// As small as a load of one half allows: searches should hit the inner caches.
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
  // Only a strictly better candidate replaces an earlier one, as in the package: ties decide ids.
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
