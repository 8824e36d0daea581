#include "titan/checkpoint/blob.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <libdeflate.h>
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "titan/base/error.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/ops/tensor_checks.h"
#include "zip.h"

namespace titan {
namespace {

struct TypeName {
  at::ScalarType type;
  std::string_view name;
  std::string_view storage;  // Python's storage class of the dtype
};
constexpr std::array<TypeName, 9> kTypes{{{at::kFloat, "float32", "FloatStorage"},
                                          {at::kBFloat16, "bfloat16", "BFloat16Storage"},
                                          {at::kHalf, "float16", "HalfStorage"},
                                          {at::kDouble, "float64", "DoubleStorage"},
                                          {at::kInt, "int32", "IntStorage"},
                                          {at::kLong, "int64", "LongStorage"},
                                          {at::kByte, "uint8", "ByteStorage"},
                                          {at::kBool, "bool", "BoolStorage"},
                                          {at::kComplexFloat, "complex64", "ComplexFloatStorage"}}};

const TypeName& known(at::ScalarType type) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return t.type == type; });
  TITAN_CHECK(found != kTypes.end(), c10::toString(type));
  return *found;
}

constexpr std::string_view kArchive = "archive/";
constexpr std::string_view kByteOrder = "little";
constexpr std::string_view kFormatVersion = "3\n";

std::string entry_name(std::string_view name) { return std::string(kArchive) + std::string(name); }

int64_t numel_of(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

PickleRef integers(std::span<const int64_t> values) {
  std::vector<PickleRef> items;
  for (int64_t value : values) items.push_back(pickle::integer(value));
  return pickle::tuple(std::move(items));
}

/// A contiguous tensor whose elements are the archive's entry data/`entry`.
PickleRef tensor_value(at::ScalarType type, std::span<const int64_t> shape, const std::string& entry) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  PickleRef storage = pickle::persistent(
      pickle::tuple({pickle::text("storage"), pickle::global("torch " + std::string(known(type).storage)),
                     pickle::text(entry), pickle::text("cpu"), pickle::integer(numel_of(shape))}));
  return pickle::call("torch._utils _rebuild_tensor_v2",
                      {std::move(storage), pickle::integer(0), integers(shape), integers(strides),
                       pickle::boolean(false), pickle::call("collections OrderedDict", {})});
}

std::string small_entries(ZipWriter& zip, std::string_view pickle) {
  std::string bytes = zip.entry(entry_name("data.pkl"), pickle);
  bytes += zip.entry(entry_name("byteorder"), kByteOrder);
  bytes += zip.entry(entry_name("version"), kFormatVersion);
  return bytes;
}

/// The bytes before the elements.
std::string tensor_head(ZipWriter& zip, at::ScalarType type, std::span<const int64_t> shape) {
  const int64_t bytes = numel_of(shape) * static_cast<int64_t>(c10::elementSize(type));
  std::string head = small_entries(zip, write_pickle(tensor_value(type, shape, "0")));
  head += zip.begin_entry(entry_name("data/0"), bytes);
  return head;
}

std::vector<int64_t> integers_in(const PickleValue& tuple) {
  std::vector<int64_t> values;
  if (!tuple.is(PickleValue::Kind::tuple)) throw DamageError("a tensor's sizes are not a tuple");
  for (const PickleRef& item : tuple.items) {
    if (!item->is(PickleValue::Kind::integer) || item->integer < 0)
      throw DamageError("a tensor's size is not a number");
    values.push_back(item->integer);
  }
  return values;
}

const ZipEntry& find_entry(const std::vector<ZipEntry>& entries, std::string_view end) {
  for (const ZipEntry& entry : entries) {
    if (entry.name.ends_with(end)) return entry;
  }
  throw DamageError(fmt::format("a saved object has no {}", end));
}

PickleRef read_entry(CheckedReader& file, const ZipEntry& entry) {
  return read_pickle(file.read(entry.offset, entry.bytes));
}

void refuse_big_endian(CheckedReader& file, const std::vector<ZipEntry>& entries) {
  for (const ZipEntry& entry : entries) {
    if (entry.name.ends_with("/byteorder") && file.read(entry.offset, entry.bytes) != kByteOrder) {
      throw DamageError("a tensor was saved on a big-endian machine, whose files this program does not read");
    }
  }
}

/// The location of a pickled tensor's elements.
StoredElements elements_of(const PickleValue& tensor, const std::vector<ZipEntry>& entries) {
  using Kind = PickleValue::Kind;
  if (!tensor.is_object("torch._utils _rebuild_tensor_v2") || tensor.items.at(0)->items.size() < 4) {
    throw DamageError("what should be a tensor is something else");
  }
  const std::vector<PickleRef>& arguments = tensor.items[0]->items;
  const PickleValue& storage = *arguments[0];
  const PickleValue* id = storage.is(Kind::persistent) ? storage.items.at(0).get() : nullptr;
  if (!id || id->items.size() < 5 || !id->items[1]->is(Kind::global) || !id->items[2]->is(Kind::text)) {
    throw DamageError("a tensor names no storage");
  }
  const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) {
    return id->items[1]->text == "torch " + std::string(t.storage);
  });
  if (type == kTypes.end()) throw DamageError(fmt::format("a tensor has a {}", id->items[1]->text));
  const ZipEntry& data = find_entry(entries, "/data/" + id->items[2]->text);
  StoredElements found{type->type, integers_in(*arguments[2]), integers_in(*arguments[3]), 0, data.offset, data.bytes};
  if (found.strides.size() != found.shape.size()) throw DamageError("a tensor has more sizes than strides");
  const auto element = static_cast<int64_t>(c10::elementSize(found.type));
  const int64_t begin = arguments[1]->integer;
  int64_t last = begin;  // strides of a damaged file may reach beyond its data
  for (size_t d = 0; d < found.shape.size(); ++d) {
    int64_t reach = 0;
    if (found.shape[d] == 0 || __builtin_mul_overflow(found.shape[d] - 1, found.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      throw DamageError("a tensor has sizes that cannot be");
    }
  }
  if (begin < 0 || last >= data.bytes / element) throw DamageError("a tensor reaches beyond its storage");
  found.first_byte = data.offset + begin * element;
  return found;
}

}  // namespace

std::string_view python_name(at::ScalarType type) {
  // Only in safetensors: Python pickles it with an opcode that the reader rejects.
  return type == at::kFloat8_e4m3fn ? "float8_e4m3fn" : known(type).name;
}

at::ScalarType type_named(std::string_view python_name) {
  for (const TypeName& type : kTypes) {
    if (type.name == python_name) return type.type;
  }
  throw DamageError(fmt::format("a tensor has the dtype {}, which this program does not read", python_name));
}

TensorBytes::TensorBytes(const at::Tensor& tensor)
    : type_(tensor.scalar_type()), read_([tensor](size_t offset, size_t most) {
        const std::string_view all(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
        return all.substr(offset, most);
      }) {
  TITAN_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.is_cpu(), summary_of(tensor));
  shape_ = tensor.sizes().vec();
}

TensorBytes::TensorBytes(at::ScalarType type, std::vector<int64_t> shape, Read read)
    : type_(type), shape_(std::move(shape)), read_(std::move(read)) {}

size_t TensorBytes::size() const { return static_cast<size_t>(numel_of(shape_)) * c10::elementSize(type_); }

int64_t tensor_blob_bytes(at::ScalarType type, std::span<const int64_t> shape) {
  ZipWriter zip;
  std::string ends = tensor_head(zip, type, shape);
  ends += zip.end_entry(0);
  ends += zip.finish();
  return static_cast<int64_t>(ends.size()) + numel_of(shape) * static_cast<int64_t>(c10::elementSize(type));
}

namespace {

/// Writes a tensor's elements; returns `checksum` continued over them.
uint32_t write_elements(HashingWriter& file, const TensorBytes& tensor, uint32_t checksum) {
  constexpr size_t kPiece = size_t{1} << 20;  // still in the cache when it is written
  for (size_t offset = 0; offset < tensor.size();) {
    const std::string_view piece = tensor.read(offset, kPiece);
    checksum = libdeflate_crc32(checksum, piece.data(), piece.size());
    file.write(piece);
    offset += piece.size();
  }
  return checksum;
}

}  // namespace

void write_tensor_blob(HashingWriter& file, const TensorBytes& tensor) {
  ZipWriter zip;
  file.write(tensor_head(zip, tensor.type(), tensor.shape()));
  file.write(zip.end_entry(write_elements(file, tensor, 0)));
  file.write(zip.finish());
}

std::string value_blob(const PickleRef& value) {
  ZipWriter zip;
  std::string blob = small_entries(zip, write_pickle(value));
  blob += zip.finish();
  return blob;
}

StoredElements read_tensor_blob(CheckedReader& file, int64_t offset, int64_t length) {
  const std::vector<ZipEntry> entries = read_zip(file, offset, length);
  refuse_big_endian(file, entries);
  return elements_of(*read_entry(file, find_entry(entries, "/data.pkl")), entries);
}

std::map<std::string, StoredElements> read_state_dict(CheckedReader& file) {
  const std::vector<ZipEntry> entries = read_zip(file, 0, file.size());
  refuse_big_endian(file, entries);
  const PickleRef pickled = read_entry(file, find_entry(entries, "/data.pkl"));
  if (!pickled->is(PickleValue::Kind::dictionary)) throw DamageError("what should be a dictionary is something else");
  std::map<std::string, StoredElements> found;
  for (size_t i = 0; i + 1 < pickled->items.size(); i += 2) {
    const PickleValue& name = *pickled->items[i];
    if (!name.is(PickleValue::Kind::text)) throw DamageError("a key of the dictionary is not a name");
    found[name.text] = elements_of(*pickled->items[i + 1], entries);
  }
  return found;
}

PickleRef read_value_blob(CheckedReader& file, int64_t offset, int64_t length) {
  return read_entry(file, find_entry(read_zip(file, offset, length), "/data.pkl"));
}

namespace {

/// The number of contiguous elements over the last dimensions: the length of one run.
int64_t run_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t& outer_dimensions) {
  int64_t run = 1;
  outer_dimensions = static_cast<int64_t>(sizes.size());
  while (outer_dimensions > 0) {
    const auto d = static_cast<size_t>(outer_dimensions - 1);
    if (sizes[d] != 1 && strides[d] != run) break;
    run *= sizes[d];
    --outer_dimensions;
  }
  return run;
}

/// Reads `sizes` elements with `strides` from `first_byte` of `file` into `into`, a CPU tensor of the same sizes and
/// dtype, run by run. Only worth it if both have runs of several elements.
void read_runs(CheckedReader& file, int64_t first_byte, at::IntArrayRef strides, const at::Tensor& into) {
  int64_t outer_source = 0, outer_target = 0;
  run_of(into.sizes(), strides, outer_source);
  run_of(into.sizes(), into.strides(), outer_target);
  const int64_t outer = std::max(outer_source, outer_target);
  int64_t run = 1;
  for (int64_t d = outer; d < into.dim(); ++d) run *= into.size(d);
  const auto element = static_cast<int64_t>(into.element_size());
  auto* const memory = static_cast<char*>(into.mutable_data_ptr());
  std::vector<int64_t> index(static_cast<size_t>(outer), 0);
  for (;;) {
    int64_t source = 0, target = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      source += index[d] * strides[d];
      target += index[d] * into.stride(static_cast<int64_t>(d));
    }
    file.read(first_byte + source * element, {memory + target * element, static_cast<size_t>(run * element)});
    int64_t d = outer - 1;
    for (; d >= 0; --d) {  // last dimension fastest, so that the file is read from front to back
      const auto place = static_cast<size_t>(d);
      if (++index[place] < into.size(d)) break;
      index[place] = 0;
    }
    if (d < 0) return;
  }
}

/// Reads the whole chunk into a temporary: for strides without contiguous runs.
at::Tensor read_chunk(CheckedReader& file, const StoredElements& stored) {
  const auto element = static_cast<int64_t>(c10::elementSize(stored.type));
  at::Tensor storage = at::empty({stored.storage_bytes / element}, stored.type);
  file.read(stored.storage_byte,
            {static_cast<char*>(storage.mutable_data_ptr()), static_cast<size_t>(storage.nbytes())});
  return storage.as_strided(stored.shape, stored.strides, (stored.first_byte - stored.storage_byte) / element);
}

/// True if the box has the dimensions of `shape` and ends within it.
bool box_fits(const Box& box, at::IntArrayRef shape) {
  bool fits = box.offset.size() == shape.size() && box.extent.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) {
    fits = box.offset[d] >= 0 && box.extent[d] >= 0 && box.offset[d] + box.extent[d] <= shape[d];
  }
  return fits;
}

}  // namespace

at::Tensor narrowed(at::Tensor tensor, const Box& box) {
  TITAN_CHECK(tensor.defined() && box_fits(box, tensor.sizes()), summary_of(tensor), box.offset, box.extent);
  for (size_t d = 0; d < box.offset.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return tensor;
}

void read_elements(CheckedReader& file, const StoredElements& stored, const Box& part, const at::Tensor& into) {
  TITAN_CHECK(into.defined() && into.sizes() == at::IntArrayRef(part.extent) && box_fits(part, stored.shape),
              file.path().string(), summary_of(into), part.offset, part.extent, stored.shape);
  const bool rows = !stored.strides.empty() && stored.strides.back() == 1;
  const bool whole_rows = rows || stored.shape.empty() || stored.shape.back() == 1;
  if (!whole_rows) {
    into.copy_(narrowed(read_chunk(file, stored), part));
    return;
  }
  int64_t first = stored.first_byte;
  for (size_t d = 0; d < stored.strides.size(); ++d) {
    first += part.offset[d] * stored.strides[d] * static_cast<int64_t>(c10::elementSize(stored.type));
  }
  if (into.is_cpu() && into.scalar_type() == stored.type && (into.dim() == 0 || into.stride(-1) == 1)) {
    read_runs(file, first, stored.strides, into);
    return;
  }
  const at::Tensor contiguous = at::empty(part.extent, stored.type);
  read_runs(file, first, stored.strides, contiguous);
  into.copy_(contiguous);
}

}  // namespace titan
