#include "sentencepiece_model.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "byte_pair_encoder.h"
#include "titan/base/error.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Type = SentencePiece::Type;

constexpr size_t kBlock = size_t{64} << 10;  // bytes: a normalised document is never in memory as a whole

/// The id of a piece, if the model marks it as a control piece.
int32_t control_id(const SentencePieceModel& model, const std::string& name) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == Type::control && model.pieces[id].text == name) return static_cast<int32_t>(id);
  }
  return Tokenizer::kNoId;
}

bool no_piece_crosses_words(const SentencePieceModel& model) {
  return model.escape_whitespaces &&
         std::all_of(model.pieces.begin(), model.pieces.end(), [](const SentencePiece& piece) {
           const bool is_text = piece.type != Type::control && piece.type != Type::unknown && piece.type != Type::byte;
           return !is_text || marked_word_end(piece.text, 0) == piece.text.size();
         });
}

/// Joins decoded pieces: converts bytes to characters and removes the space that encoding prepended.
class Decoder {
 public:
  explicit Decoder(const SentencePieceModel& model) : model_(model) {}

  void add(const SentencePiece& piece) {
    if (piece.type == Type::byte) {
      bytes_.push_back(static_cast<char>(byte_of_piece(piece.text)));
      return;
    }
    flush();
    if (took_space_ || !text_.empty()) at_front_ = false;
    took_space_ = false;
    if (piece.type == Type::control) return;
    if (piece.type == Type::unknown) {
      text_ += model_.unknown_surface;
      return;
    }
    std::string_view rest = piece.text;
    if (at_front_ && (model_.add_dummy_prefix || model_.remove_extra_whitespaces) && rest.starts_with(kWordMark)) {
      rest.remove_prefix(kWordMark.size());
      // Google's package removes all leading spaces if remove_extra_whitespaces is set, and one otherwise.
      took_space_ = !model_.remove_extra_whitespaces;
    }
    while (!rest.empty()) {
      const size_t mark = std::min(rest.find(kWordMark), rest.size());
      text_ += rest.substr(0, mark);
      rest.remove_prefix(mark);
      if (rest.empty()) break;
      text_ += ' ';
      rest.remove_prefix(kWordMark.size());
    }
  }

  std::string finish() {
    flush();
    return std::move(text_);
  }

 private:
  /// Invalid bytes become one U+FFFD each.
  void flush() {
    for (std::string_view rest = bytes_; !rest.empty();) {
      const size_t length = std::min(utf8_length(static_cast<unsigned char>(rest[0])), rest.size());
      const bool valid = valid_utf8_length(rest.substr(0, length)) == length;
      text_ += valid ? rest.substr(0, length) : std::string_view("\xEF\xBF\xBD");
      rest.remove_prefix(valid ? length : 1);
    }
    bytes_.clear();
  }

  const SentencePieceModel& model_;
  std::string text_;
  std::string bytes_;
  bool at_front_ = true;
  bool took_space_ = false;
};

}  // namespace

struct SentencePieceTokenizer::Scratch {
  PieceCache cache;
  UnigramEncoder::Pass unigram;
  std::string repaired;
  std::string normalized;
  std::vector<int32_t> parts;
};

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model)
    : model_(std::move(model)), normalizer_(model_), words_stand_alone_(no_piece_crosses_words(model_)) {
  if (model_.kind == SentencePieceModel::Kind::bpe) {
    bpe_ = std::make_unique<SentencePieceBpe>(model_);
  } else {
    unigram_ = std::make_unique<UnigramEncoder>(model_);
  }
  bos_id_ = control_id(model_, model_.bos_piece);
  eos_id_ = control_id(model_, model_.eos_piece);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  auto lease = pool_.borrow([] { return std::make_unique<Scratch>(); });
  Scratch& scratch = *lease;
  const std::string_view valid = valid_utf8(text, scratch.repaired);
  const size_t before = ids.size();
  if (unigram_) {
    scratch.unigram.start();
    ReadyIds ready(ids);
    for_each_stretch(valid, scratch.normalized, [&](std::string_view part, size_t begin, size_t end) {
      unigram_->encode(part, begin, end, scratch.unigram, ready);
    });
    ready.flush();
  } else {
    CachedPieces pieces(scratch.cache, ids);
    auto encode = [&](std::string_view stretch, std::vector<int32_t>& to) { bpe_->encode(stretch, scratch.parts, to); };
    for_each_stretch(valid, scratch.normalized,
                     [&](std::string_view part, size_t begin, size_t end) { pieces.add(part, begin, end, encode); });
    pieces.flush();
  }
  if (!model_.byte_fallback) {  // the package gives one id for a run of unknown pieces
    auto both_unknown = [this](int32_t a, int32_t b) { return a == model_.unknown_id && b == a; };
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(before);
    ids.erase(std::unique(first, ids.end(), both_unknown), ids.end());
  }
}

/// Normalises the text into `normalized` and calls encode(normalized, begin, end) for each stretch that can be encoded
/// by itself. If no piece crosses a space, a stretch is a word and the text is normalised block by block; otherwise the
/// whole text is one stretch.
template <class Encode>
void SentencePieceTokenizer::for_each_stretch(std::string_view text, std::string& normalized,
                                              const Encode& encode) const {
  SentencePieceNormalizer::Pass pass(normalizer_, text);
  normalized.clear();
  for (bool more = true; more;) {
    more = pass.run(words_stand_alone_ ? normalized.size() + kBlock : SIZE_MAX, normalized);
    size_t begin = 0;
    for (size_t end; begin < normalized.size(); begin = end) {
      end = words_stand_alone_ ? marked_word_end(normalized, begin) : normalized.size();
      if (end == normalized.size() && more) break;  // the word may continue in the next block
      encode(normalized, begin, end);
    }
    normalized.erase(0, begin);
  }
}

const SentencePiece& SentencePieceTokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) {
    throw Error(ExitCode::bad_data,
                fmt::format("token id {} is not in this tokenizer: its ids are 0 to {}", id, vocabulary_size() - 1));
  }
  return model_.pieces[static_cast<size_t>(id)];
}

std::vector<std::pair<std::string, int32_t>> SentencePieceTokenizer::special_tokens() const {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const SentencePiece& piece = model_.pieces[id];
    if (piece.type == Type::control) tokens.emplace_back(piece.text, static_cast<int32_t>(id));
  }
  return tokens;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  Decoder decoder(model_);
  for (int32_t id : ids) decoder.add(piece(id));
  return decoder.finish();
}

std::string SentencePieceTokenizer::name() const { return fmt::format("SentencePiece ({})", bpe_ ? "BPE" : "unigram"); }

std::string SentencePieceTokenizer::description() const {
  return fmt::format("SentencePieceTokenizer built: #words {}, BOS ID {}, EOS ID {}", vocabulary_size(),
                     shown_id(bos_id()), shown_id(eos_id()));
}

namespace {

using Type = SentencePiece::Type;

bool merges(const SentencePiece& piece) { return piece.type == Type::normal || piece.type == Type::user_defined; }

size_t first_length(std::string_view text) { return utf8_length(static_cast<unsigned char>(text[0])); }

/// Ranks by score: the highest is 0, equal scores share a rank.
std::vector<int32_t> ranks_of(const SentencePieceModel& model) {
  std::vector<float> scores;
  for (const SentencePiece& piece : model.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>{});
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<int32_t> ranks;
  for (const SentencePiece& piece : model.pieces) {
    auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>{});
    ranks.push_back(static_cast<int32_t>(at - scores.begin()));
  }
  return ranks;
}

}  // namespace

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model)
    : user_defined_(user_defined_pieces(model)),
      byte_ids_(model.byte_fallback ? 256 : 0, -1),
      pieces_(static_cast<int32_t>(model.pieces.size())),
      unknown_id_(model.unknown_id) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    lengths_.push_back(static_cast<uint32_t>(piece.text.size()));
    if (piece.type == Type::byte) byte_ids_[static_cast<size_t>(byte_of_piece(piece.text))] = static_cast<int32_t>(id);
    if (merges(piece) && first_length(piece.text) == piece.text.size()) {
      characters_[first_code_point(piece.text)] = static_cast<int32_t>(id);
    }
  }
  add_merges(model);
}

/// All ways to form a piece from two parts (pieces or single characters).
void SentencePieceBpe::add_merges(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, int32_t> parts;
  std::set<size_t> known_lengths;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (!merges(model.pieces[id])) continue;
    parts[model.pieces[id].text] = static_cast<int32_t>(id);
    known_lengths.insert(model.pieces[id].text.size());
  }
  for (const SentencePiece& piece : model.pieces) {
    if (!merges(piece)) continue;
    for (std::string_view rest = piece.text; !rest.empty();) {
      const std::string_view character = rest.substr(0, first_length(rest));
      rest.remove_prefix(character.size());
      if (!parts.try_emplace(character, static_cast<int32_t>(lengths_.size())).second) continue;
      characters_[first_code_point(character)] = static_cast<int32_t>(lengths_.size());
      lengths_.push_back(static_cast<uint32_t>(character.size()));
      known_lengths.insert(character.size());
    }
  }
  const std::vector<int32_t> ranks = ranks_of(model);
  std::vector<Merge> merges_found;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const std::string_view text = model.pieces[id].text;
    if (!merges(model.pieces[id])) continue;
    for (size_t cut : known_lengths) {
      if (cut >= text.size()) break;
      if (!known_lengths.contains(text.size() - cut)) continue;
      auto left = parts.find(text.substr(0, cut));
      auto right = left == parts.end() ? left : parts.find(text.substr(cut));
      if (right == parts.end()) continue;
      merges_found.push_back({left->second, right->second, ranks[id], static_cast<int32_t>(id)});
    }
  }
  table_ = MergeTable(merges_found);
}

void SentencePieceBpe::first_parts(std::string_view stretch, std::vector<int32_t>& parts) const {
  parts.clear();
  for (size_t at = 0; at < stretch.size();) {
    if (const AddedToken* piece = user_defined_.longest_at(stretch, at)) {
      parts.push_back(-2 - piece->id);
      at += piece->content.size();
      continue;
    }
    const std::string_view rest = stretch.substr(at);
    auto found = characters_.find(first_code_point(rest));
    parts.push_back(found == characters_.end() ? -1 : found->second);
    at += first_length(rest);
  }
}

void SentencePieceBpe::encode(std::string_view stretch, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const {
  first_parts(stretch, parts);
  parts.resize(table_.merge(parts));
  size_t at = 0;
  for (int32_t part : parts) {
    if (part <= -2) part = -2 - part;
    const size_t length = part < 0 ? first_length(stretch.substr(at)) : lengths_[static_cast<size_t>(part)];
    if (part >= 0 && part < pieces_) {
      ids.push_back(part);
    } else if (byte_ids_.empty()) {
      ids.push_back(unknown_id_);
    } else {
      for (char c : stretch.substr(at, length)) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    }
    at += length;
  }
}

}  // namespace titan
