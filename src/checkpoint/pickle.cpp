#include "titan/checkpoint/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace titan {
namespace {

/// Names that a checkpoint's pickles may contain, besides torch's dtypes and storages. Python would import and call any
/// name; what the reader does not know, it refuses.
constexpr std::array<std::string_view, 17> kKnownNames{
    "torch.distributed.checkpoint.metadata Metadata",
    "torch.distributed.checkpoint.metadata TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata TensorProperties",
    "torch.distributed.checkpoint.metadata MetadataIndex",
    "torch.distributed.checkpoint.metadata StorageMeta",
    "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem _StorageInfo",
    "torch.serialization _get_layout",
    "torch._utils _rebuild_tensor_v2",
    "torch Size",
    "collections OrderedDict",
    "_codecs encode",
    "_io BytesIO",
    // Python 3.11.0 to 3.11.3 write enumeration members with it; the reader accepts no other use.
    "builtins getattr",
    "__builtin__ getattr",
};
constexpr std::array<std::string_view, 4> kPathNames{"pathlib PosixPath", "pathlib PurePosixPath",
                                                     "pathlib._local PosixPath", "pathlib WindowsPath"};

constexpr std::array<std::string_view, 22> kTorchNames{"float32",
                                                       "float64",
                                                       "float16",
                                                       "bfloat16",
                                                       "float8_e4m3fn",
                                                       "float8_e5m2",
                                                       "int8",
                                                       "int16",
                                                       "int32",
                                                       "int64",
                                                       "uint8",
                                                       "bool",
                                                       "complex64",
                                                       "FloatStorage",
                                                       "DoubleStorage",
                                                       "HalfStorage",
                                                       "LongStorage",
                                                       "IntStorage",
                                                       "BFloat16Storage",
                                                       "ByteStorage",
                                                       "BoolStorage",
                                                       "ComplexFloatStorage"};

}  // namespace

bool is_known_name(std::string_view name) {
  constexpr std::string_view kTorch = "torch ";
  const auto among = [](const auto& names, std::string_view wanted) {
    return std::find(names.begin(), names.end(), wanted) != names.end();
  };
  return among(kKnownNames, name) || among(kPathNames, name) ||
         (name.starts_with(kTorch) && among(kTorchNames, name.substr(kTorch.size())));
}

// Values to write, and their pickles (protocol 2, with the bytes of protocol 3).

namespace {

using Kind = PickleValue::Kind;

PickleRef make(PickleValue value) { return std::make_shared<const PickleValue>(std::move(value)); }

/// Marks an object that is created without a call; see `pickle::instance`.
constexpr int64_t kInstance = 1;

/// The number of items of a list or dictionary that one APPENDS or SETITEMS adds. A reader keeps them on its stack
/// until then, so the number is limited; Python's pickle module uses the same.
constexpr size_t kBatchItems = 1000;
/// A stream passes its bytes on in pieces of this size.
constexpr size_t kStreamPiece = size_t{64} << 10;

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::dictionary) return nullptr;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::text && items[i]->text == key) return items[i + 1].get();
  }
  return nullptr;
}

namespace pickle {

PickleRef none() { return make({}); }
PickleRef boolean(bool value) { return make({.kind = Kind::boolean, .integer = value, .text = {}, .items = {}}); }
PickleRef integer(int64_t value) { return make({.kind = Kind::integer, .integer = value, .text = {}, .items = {}}); }
PickleRef real(double value) { return make({.kind = Kind::real, .real = value, .text = {}, .items = {}}); }
PickleRef text(std::string value) { return make({.kind = Kind::text, .text = std::move(value), .items = {}}); }
PickleRef bytes(std::string value) { return make({.kind = Kind::bytes, .text = std::move(value), .items = {}}); }
PickleRef tuple(std::vector<PickleRef> items) {
  return make({.kind = Kind::tuple, .text = {}, .items = std::move(items)});
}
PickleRef list(std::vector<PickleRef> items) {
  return make({.kind = Kind::list, .text = {}, .items = std::move(items)});
}
PickleRef dictionary(const std::vector<std::pair<std::string, PickleRef>>& items) {
  PickleValue value{.kind = Kind::dictionary, .text = {}, .items = {}};
  for (const auto& [key, item] : items) {
    value.items.push_back(text(key));
    value.items.push_back(item);
  }
  return make(std::move(value));
}
PickleRef call(std::string name, std::vector<PickleRef> arguments) {
  return make({.kind = Kind::object, .text = std::move(name), .items = {tuple(std::move(arguments))}});
}
PickleRef instance(std::string name, PickleRef state) {
  return make(
      {.kind = Kind::object, .integer = kInstance, .text = std::move(name), .items = {tuple({}), std::move(state)}});
}
PickleRef global(std::string name) { return make({.kind = Kind::global, .text = std::move(name), .items = {}}); }
PickleRef persistent(PickleRef id) { return make({.kind = Kind::persistent, .text = {}, .items = {std::move(id)}}); }

}  // namespace pickle

std::string write_pickle(const PickleRef& value) {
  std::string bytes;
  PickleStream stream([&](std::string_view part) { bytes += part; });
  stream.value(*value);
  stream.finish();
  return bytes;
}

PickleStream::PickleStream(Sink sink) : sink_(std::move(sink)), bytes_("\x80\x02") {}

void PickleStream::finish() {
  bytes_ += '.';
  pass_on();
}

void PickleStream::pass_on() {
  sink_(bytes_);
  bytes_.clear();
}

void PickleStream::value(const PickleValue& value) {
  switch (value.kind) {
    case Kind::none:
      bytes_ += 'N';
      return;
    case Kind::boolean:
      bytes_ += value.integer ? '\x88' : '\x89';
      return;
    case Kind::integer:
      return integer(value.integer);
    case Kind::real:
      bytes_ += 'G';
      return number(__builtin_bswap64(std::bit_cast<uint64_t>(value.real)));
    case Kind::text:
      return counted('X', value.text);
    case Kind::bytes:
      return counted('B', value.text);
    case Kind::tuple:
      return tuple(value);
    case Kind::list:
      return filled("](", value, 'e');
    case Kind::dictionary:
      return filled("}(", value, 'u');
    case Kind::global:
      return global(value.text);
    case Kind::object:
      return object(value);
    case Kind::persistent:
      this->value(*value.items.at(0));
      bytes_ += 'Q';
      return;
  }
}

void PickleStream::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    bytes_ += 'J';
    return number(static_cast<int32_t>(value));
  }
  bytes_ += "\x8a\x08";
  number(value);
}

void PickleStream::counted(char code, const std::string& content) {
  bytes_ += code;
  number(static_cast<uint32_t>(content.size()));
  bytes_ += content;
}

void PickleStream::tuple(const PickleValue& value) {
  if (value.items.empty()) {
    bytes_ += ')';
    return;
  }
  filled("(", value, 't');
}

void PickleStream::filled(std::string_view begin, const PickleValue& value, char end) {
  bytes_ += begin;
  for (const PickleRef& item : value.items) this->value(*item);
  bytes_ += end;
}

void PickleStream::global(const std::string& name) {
  const size_t space = name.find(' ');
  bytes_ += 'c';
  bytes_ += name.substr(0, space) + '\n' + name.substr(space + 1) + '\n';
}

void PickleStream::object(const PickleValue& value) {
  global(value.text);
  this->value(*value.items.at(0));
  bytes_ += value.integer == kInstance ? '\x81' : 'R';
  if (value.items.size() == 1) return;
  this->value(*value.items[1]);
  bytes_ += 'b';
}

bool PickleStream::refer(const std::string& key) {
  const auto found = known_.find(key);
  if (found == known_.end()) return false;
  if (found->second <= std::numeric_limits<uint8_t>::max()) {
    bytes_ += 'h';
    number(static_cast<uint8_t>(found->second));
  } else {
    bytes_ += 'j';
    number(found->second);
  }
  return true;
}

void PickleStream::remember(const std::string& key) {
  const auto place = static_cast<uint32_t>(known_.size());
  known_.emplace(key, place);
  bytes_ += 'r';
  number(place);
}

void PickleStream::shared_text(const std::string& text) {
  const std::string key = 'X' + text;
  if (refer(key)) return;
  counted('X', text);
  remember(key);
}

void PickleStream::shared_global(const std::string& name) {
  const std::string key = 'c' + name;
  if (refer(key)) return;
  global(name);
  remember(key);
}

void PickleStream::open_list() {
  bytes_ += "](";
  counts_.push_back(0);
}

void PickleStream::open_dictionary() {
  bytes_ += "}(";
  counts_.push_back(0);
}

void PickleStream::next_item() { next('e'); }
void PickleStream::next_pair() { next('u'); }

void PickleStream::next(char end) {
  size_t& count = counts_.back();
  if (count == kBatchItems) {
    bytes_ += end;
    bytes_ += '(';
    count = 0;
  }
  ++count;
  if (bytes_.size() >= kStreamPiece) pass_on();
}

void PickleStream::close(char end) {
  bytes_ += end;
  counts_.pop_back();
}

void PickleStream::open_instance(const std::string& name) {
  shared_global(name);
  bytes_ += ")\x81";
}

}  // namespace titan
