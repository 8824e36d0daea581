// SentencePiece's BPE model: characters merge to the piece of the highest score, leftmost of equals. Immutable.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "titan/data/added_tokens.h"
#include "titan/data/merge_table.h"
#include "titan/data/sentencepiece_model.h"

namespace titan {

class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model);

  /// Appends the ids of a stretch of normalised text that no piece reaches out of; see UnigramEncoder::encode.
  void encode(std::string_view stretch, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

 private:
  void add_merges(const SentencePieceModel& model);
  void first_parts(std::string_view stretch, std::vector<int32_t>& parts) const;

  // A part is a piece's id, the number of a character that is no piece but occurs in some (from pieces on), −1 for any
  // other character, or −2 − id for a user-defined piece, which merges with nothing.
  std::unordered_map<char32_t, int32_t> characters_;
  std::vector<uint32_t> lengths_;  // bytes of a part
  MergeTable table_;
  AddedTokenFinder user_defined_;
  std::vector<int32_t> byte_ids_;
  int32_t pieces_;
  int32_t unknown_id_;
};

}  // namespace titan
