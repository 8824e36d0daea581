#include "protobuf_reader.h"

namespace titan {

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
    default:  // groups, which models do not use
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

/// Little-endian.
bool ProtobufReader::take(size_t count, uint64_t& value) {
  if (count > bytes_.size() - at_) return false;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
  at_ += count;
  return true;
}

}  // namespace titan
