#include "titan/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 7> kTypes{{{at::kFloat, "F32"},
                                          {at::kDouble, "F64"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kHalf, "F16"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kByte, "U8"}}};

const char* name_of(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  throw InvariantError(fmt::format("internal error: no safetensors name for {}", c10::toString(type)));
}

std::optional<at::ScalarType> type_named(const std::string& name) {
  for (const TypeName& known : kTypes) {
    if (name == known.name) return known.type;
  }
  return std::nullopt;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(ExitCode::storage, fmt::format("{}: {}; the file is damaged or not safetensors", path.string(), what));
}

/// Bytes of a tensor of `shape`; nothing when a size is negative or the product leaves 64 bits.
std::optional<size_t> bytes_of(const std::vector<int64_t>& shape, at::ScalarType type) {
  size_t bytes = c10::elementSize(type);
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

at::Tensor read_tensor(const std::filesystem::path& path, const std::string& name, const nlohmann::ordered_json& entry,
                       std::string_view data) {
  try {
    const std::string type_name = entry.at("dtype").get<std::string>();
    const auto type = type_named(type_name);
    if (!type) fail(path, fmt::format("tensor {} has the unknown type {}", name, type_name));
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto offsets = entry.at("data_offsets").get<std::array<size_t, 2>>();
    // Checked before any memory is asked for: a damaged shape may ask for more than there is.
    const auto bytes = bytes_of(shape, *type);
    if (offsets[1] > data.size() || offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes) {
      fail(path, fmt::format("tensor {} lies outside the file or does not fill its shape", name));
    }
    at::Tensor tensor = at::empty(shape, at::TensorOptions(*type));
    if (*bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data.data() + offsets[0], *bytes);
    return tensor;
  } catch (const nlohmann::json::exception& error) {
    fail(path, fmt::format("the header's entry for tensor {} cannot be read ({})", name, error.what()));
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();  // also without a tensor
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + tensor.nbytes()}}};
    offset += tensor.nbytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins on a multiple of 8
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
  bytes.reserve(bytes.size() + offset);
  for (const auto& [name, tensor] : tensors) {
    at::Tensor host = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  }
  write_file_atomically(path, bytes);
}

NamedTensors read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  if (bytes.size() < sizeof length) fail(path, "the file is too short");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) fail(path, "the header is longer than the file");
  const auto header = nlohmann::ordered_json::parse(bytes.substr(sizeof length, length), nullptr, false);
  if (!header.is_object()) fail(path, "the header is no JSON");
  const std::string_view data = std::string_view(bytes).substr(sizeof length + length);
  NamedTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors.emplace_back(name, read_tensor(path, name, entry, data));
  }
  return tensors;
}

}  // namespace titan
