#include "sentencepiece_model.h"

#include <fmt/format.h>
#include <bit>
#include <bitset>
#include <charconv>
#include <cmath>
#include <cstring>
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

}  // namespace titan
