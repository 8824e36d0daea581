#include "titan/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "titan/base/json.h"

namespace titan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

using Json = nlohmann::ordered_json;

/// The longest header that the format's own library accepts.
constexpr uint64_t kLongestHeader = 100'000'000;

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 8> kTypes{{{at::kFloat, "F32"},
                                          {at::kDouble, "F64"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kHalf, "F16"},
                                          {at::kFloat8_e4m3fn, "F8_E4M3"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kByte, "U8"}}};

std::optional<at::ScalarType> type_named(const std::string& name) {
  for (const TypeName& known : kTypes) {
    if (name == known.name) return known.type;
  }
  return std::nullopt;
}

/// One header, read entry by entry.
class HeaderReader {
 public:
  explicit HeaderReader(CheckedReader& file) : file_(file) {}

  std::vector<SafetensorsEntry> read() {
    const Json header = parse();
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") entries_.push_back(entry(name, value));
    }
    std::stable_sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    check_cover();
    return std::move(entries_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DamageError(fmt::format("{}: {}; the file is damaged or not safetensors", file_.path().string(), what));
  }

  Json parse() {
    uint64_t length = 0;
    const auto size = static_cast<uint64_t>(file_.size());
    if (size < sizeof length) fail("the file is too short");
    std::memcpy(&length, file_.read(0, sizeof length).data(), sizeof length);
    if (length > size - sizeof length) fail("the header is longer than the file");
    if (length > kLongestHeader) fail(fmt::format("the header has {} bytes, more than the format's 100 MB", length));
    begin_ = static_cast<int64_t>(sizeof length + length);
    const std::string text = file_.read(sizeof length, static_cast<int64_t>(length));
    std::set<std::string> names;
    std::string twice;
    const auto note = [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth == 1 && event == Json::parse_event_t::key && !names.insert(parsed.get<std::string>()).second) {
        twice = parsed.get<std::string>();
      }
      return true;
    };
    Json header;
    try {
      header = parse_json_with<Json>(text, note);
    } catch (const Json::exception& error) {
      fail(fmt::format("the header is no JSON object ({})", error.what()));
    }
    if (!header.is_object()) fail("the header is no JSON object");
    if (!twice.empty()) fail(fmt::format("the header has two entries for {}", twice));
    return header;
  }

  SafetensorsEntry entry(const std::string& name, const Json& value) const {
    const auto has = [&](const char* key) { return value.is_object() && value.contains(key); };
    const bool complete = has("dtype") && value["dtype"].is_string() && has("shape") && has("data_offsets");
    if (!complete) fail(fmt::format("the header's entry for tensor {} cannot be read", name));
    const auto type_name = value["dtype"].get<std::string>();
    const std::optional<at::ScalarType> type = type_named(type_name);
    if (!type) fail(fmt::format("tensor {} has the unknown type {}", name, type_name));
    SafetensorsEntry found{{name, *type, numbers(name, value["shape"])}, 0, 0};
    const std::vector<int64_t> offsets = numbers(name, value["data_offsets"]);
    const int64_t data = file_.size() - begin_;
    // Checked before any memory is asked for: a damaged shape may ask for more than there is.
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data) {
      fail(fmt::format("tensor {} lies outside the file", name));
    }
    found.offset = begin_ + offsets[0];
    found.bytes = offsets[1] - offsets[0];
    if (bytes_of(found.tensor) != found.bytes) fail(fmt::format("tensor {} does not fill its shape", name));
    return found;
  }

  std::vector<int64_t> numbers(const std::string& name, const Json& list) const {
    std::vector<int64_t> values;
    const auto is_size = [](const Json& item) {
      return item.is_number_unsigned() && item.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
    };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_size)) {
      fail(fmt::format("the header's entry for tensor {} cannot be read", name));
    }
    for (const Json& item : list) values.push_back(item.get<int64_t>());
    return values;
  }

  /// Nothing when the product leaves 64 bits.
  static std::optional<int64_t> bytes_of(const LogicalTensor& tensor) {
    auto bytes = static_cast<int64_t>(c10::elementSize(tensor.type));
    for (const int64_t size : tensor.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
    }
    return bytes;
  }

  /// The tensors fill the rest of the file, each byte once.
  void check_cover() const {
    int64_t reached = begin_;
    for (const SafetensorsEntry& entry : entries_) {
      if (entry.offset < reached) fail(fmt::format("tensor {} overlaps another", entry.tensor.name));
      if (entry.offset > reached) fail(fmt::format("the bytes before tensor {} belong to none", entry.tensor.name));
      reached = entry.offset + entry.bytes;
    }
    if (reached != file_.size()) fail(fmt::format("its last {} bytes belong to no tensor", file_.size() - reached));
  }

  CheckedReader& file_;
  int64_t begin_ = 0;  // of the tensors' bytes
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(CheckedReader& file) { return HeaderReader(file).read(); }

std::string safetensors_name(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  throw InvariantError(fmt::format("internal error: no safetensors name for {}", c10::toString(type)));
}

std::string safetensors_header(std::span<const LogicalTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();  // also without a tensor
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const LogicalTensor& tensor : tensors) {
    const int64_t end = offset + tensor.bytes_of({std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape});
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins on a multiple of 8
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace titan
