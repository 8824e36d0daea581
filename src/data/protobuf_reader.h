// The wire format of protocol buffers, as far as models need it: fields in order, one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace titan {

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
