#include "titan/data/sentencepiece_bpe.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "titan/data/utf8.h"

namespace titan {
namespace {

using Type = SentencePiece::Type;

bool merges(const SentencePiece& piece) { return piece.type == Type::normal || piece.type == Type::user_defined; }

size_t first_length(std::string_view text) { return utf8_length(static_cast<unsigned char>(text[0])); }

/// Ranks by score: the highest is 0, equal scores share one.
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

/// All ways to put a piece together from two parts: pieces, or single characters.
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
