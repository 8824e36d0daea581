#include "titan/data/sentencepiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/data/cached_pieces.h"
#include "titan/data/utf8.h"
#include "titan/data/word_marks.h"

namespace titan {
namespace {

using Type = SentencePiece::Type;

constexpr size_t kBlock = size_t{64} << 10;  // bytes normalised at a time

/// A piece that is a special one only where the model calls it a control piece.
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

/// Puts decoded pieces together: bytes become characters, and the space that encoding put in front is taken off.
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
      // Where extra spaces are removed, all at the front are.
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
  /// Bytes that are no character are one U+FFFD each.
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
  if (!model_.byte_fallback) {  // a run of unknown characters is one unknown piece
    auto both_unknown = [this](int32_t a, int32_t b) { return a == model_.unknown_id && b == a; };
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(before);
    ids.erase(std::unique(first, ids.end(), both_unknown), ids.end());
  }
}

/// Normalises the text block by block into `normalized` and calls encode(block, begin, end) for its stretches, which no
/// piece reaches out of: words, or the whole text where words cannot be told apart.
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
      if (end == normalized.size() && more) break;  // the word may go on
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

}  // namespace titan
