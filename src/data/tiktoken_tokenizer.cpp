#include "titan/data/tiktoken_tokenizer.h"

#include <fmt/format.h>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/data/cached_pieces.h"
#include "titan/data/segment_cutter.h"
#include "titan/data/utf8.h"

namespace titan {

struct TiktokenTokenizer::Scratch {
  explicit Scratch(const PieceSplitter& splitter) : expression(splitter) {}
  PieceSplitter::Scratch expression;
  PieceCache cache;
  std::string repaired;
};

TiktokenTokenizer::TiktokenTokenizer(std::vector<std::string> tokens) : encoder_(std::move(tokens)) {
  std::string all = name();
  for (const std::string& token : encoder_.tokens()) all += fmt::format("\n{} {}", token.size(), token);
  fingerprint_ = name_key(all);
}

TiktokenTokenizer::~TiktokenTokenizer() = default;

void TiktokenTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  auto lease = pool_.borrow([this] { return std::make_unique<Scratch>(splitter_); });
  Scratch& scratch = *lease;
  SegmentCutter cutter(valid_utf8(text, scratch.repaired));
  for (std::string_view segment; cutter.next(segment);) encode_segment(segment, scratch, ids);
}

void TiktokenTokenizer::encode_segment(std::string_view segment, Scratch& scratch, std::vector<int32_t>& ids) const {
  CachedPieces pieces(scratch.cache, ids);
  for (size_t begin = 0, end; begin < segment.size(); begin = end) {
    end = splitter_.piece_end(segment, begin, scratch.expression);
    pieces.add(segment, begin, end,
               [this](std::string_view piece, std::vector<int32_t>& to) { encoder_.encode_piece(piece, to); });
  }
  pieces.flush();
}

std::string TiktokenTokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("token id {} is not in this tokenizer: its ids are 0 to {}", id, vocabulary_size() - 1));
    }
    bytes += id < encoder_.size() ? encoder_.token(id) : special_name(id - encoder_.size());
  }
  repair_utf8(bytes);
  return bytes;
}

std::string TiktokenTokenizer::description() const {
  return fmt::format("TikTokenizer built: #words {}, BOS ID {}, EOS ID {}", vocabulary_size(), bos_id(), eos_id());
}

std::string TiktokenTokenizer::special_name(int32_t index) {
  TITAN_CHECK(index >= 0 && index < kSpecialTokens, index);
  switch (index) {
    case 0:
      return "<|begin_of_text|>";
    case 1:
      return "<|end_of_text|>";
    case 6:
      return "<|start_header_id|>";
    case 7:
      return "<|end_header_id|>";
    case 9:
      return "<|eot_id|>";
    default:
      break;
  }
  int32_t reserved = index < 6 ? index - 2 : index == 8 ? 4 : index - 5;
  return fmt::format("<|reserved_special_token_{}|>", reserved);
}

}  // namespace titan
