// What a SentencePiece model file says: a protocol buffer (sentencepiece_model.proto), read by an own small reader of
// the wire format. Knows nothing of encoding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/added_tokens.h"

namespace titan {

struct SentencePiece {
  enum class Type : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  std::string text;
  float score = 0;
  Type type = Type::normal;
};

/// Defaults are those of the format.
struct SentencePieceModel {
  enum class Kind : int32_t { unigram = 1, bpe = 2, word = 3, character = 4 };

  std::vector<SentencePiece> pieces;  ///< by id
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";  ///< what <unk> becomes in decoded text

  std::string charsmap;  ///< precompiled normalisation rules; empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  int32_t unknown_id = -1;
  uint64_t fingerprint = 0;  ///< of the file's bytes
};

/// Reads and checks a model file. Throws Error(bad_data): where the file is damaged, which part of it is not read here,
/// and what to do.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// Whether `bytes`, the beginning of a file, look like a model: a first piece as a length-delimited field 1.
bool looks_like_sentencepiece(std::string_view bytes);

/// The pieces that the user defined, by their ids: they are found before anything is cut.
std::vector<AddedToken> user_defined_pieces(const SentencePieceModel& model);

/// The byte of a piece "<0xNN>", or −1.
int byte_of_piece(std::string_view piece);

// The wire format of protocol buffers, as far as models need it: fields in order, one after the other.

/// Reads the fields of one message. `ok` turns false where the bytes are no message; reading then ends.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;        // of a varint, fixed32 or fixed64
    std::string_view content;  // of a length-delimited field
    enum class Wire : uint8_t { varint = 0, fixed64 = 1, content = 2, fixed32 = 5 } wire = Wire::varint;
  };

  /// The next field; false at the end and where the bytes are damaged.
  bool next(Field& field);
  bool ok() const { return ok_; }
  size_t position() const { return at_; }

 private:
  std::optional<uint64_t> varint();
  bool take(size_t bytes, uint64_t& value);

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace titan
