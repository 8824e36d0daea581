#include "titan/checkpoint/foreign_weights.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>
#include <limits>
#include <numeric>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

constexpr int64_t kPieceBytes = int64_t{32} << 20;  // a conversion holds no more of a tensor, however large that is
// Enough to recognise the model that the file is of; a message with all of them would fill a screen.
constexpr size_t kNamesShown = 3;

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string first_few(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = join(std::span(names).first(shown), ", ");
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

bool is_ignored(const ForeignModel& model, const std::string& name) {
  return std::any_of(model.ignored.begin(), model.ignored.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

/// The reason why a tensor cannot be the parameter; empty if it can.
std::string obstacle(const LogicalTensor& stored, const std::vector<int64_t>& shape) {
  if (stored.shape != shape) {
    return fmt::format("{} has shape {}, this model's has {}", stored.name, shape_text(stored.shape),
                       shape_text(shape));
  }
  const bool is_number = c10::isFloatingType(stored.type) && stored.type != at::kFloat8_e4m3fn;
  if (!is_number) return fmt::format("{} is of {}", stored.name, python_name(stored.type));
  return {};
}

/// A row range as a box; for a scalar, the whole tensor.
Box rows_of(const std::vector<int64_t>& shape, int64_t first, int64_t count) {
  Box box{std::vector<int64_t>(shape.size(), 0), shape};
  if (shape.empty()) return box;
  box.offset[0] = first;
  box.extent[0] = count;
  return box;
}

/// Checks that a tied weight's second copy is equal, in row ranges.
bool is_copy(TensorSource& source, const std::string& copy, const std::string& original) {
  const LogicalTensor &a = source.tensors().at(copy), &b = source.tensors().at(original);
  if (a.type != b.type || a.shape != b.shape) return false;
  const int64_t step = rows_at_once(a, 1), rows = a.shape.empty() ? 1 : a.shape[0];
  for (int64_t row = 0; row < rows; row += step) {
    const Box box = rows_of(a.shape, row, std::min(step, rows - row));
    const at::Tensor first = at::empty(box.extent, a.type), second = at::empty(box.extent, a.type);
    source.read(copy, box, first);
    source.read(original, box, second);
    if (!first.equal(second)) return false;
  }
  return true;
}

at::Tensor swapped(const at::Tensor& rows, int64_t outer, int64_t inner) {
  const int64_t head_dim = outer * inner;
  TITAN_CHECK(rows.defined() && rows.dim() >= 1 && head_dim > 0 && rows.size(0) % head_dim == 0, summary_of(rows),
              head_dim);
  std::vector<int64_t> cut{rows.size(0) / head_dim, outer, inner};
  cut.insert(cut.end(), rows.sizes().begin() + 1, rows.sizes().end());
  return rows.reshape(cut).transpose(1, 2).reshape(rows.sizes());
}

/// Reads a row range of a parameter with rotary heads, in our row order.
void read_turned(TensorSource& theirs, const ForeignTensor& tensor, const Box& box, const at::Tensor& into) {
  const int64_t head_dim = row_unit(tensor);
  const int64_t first = box.offset[0] / head_dim * head_dim;
  const int64_t end = (box.offset[0] + box.extent[0] + head_dim - 1) / head_dim * head_dim;
  Box heads = box;
  heads.offset[0] = first;
  heads.extent[0] = end - first;
  const at::Tensor rows = at::empty(heads.extent, theirs.tensors().at(tensor.name).type);
  theirs.read(tensor.name, heads, rows);
  into.copy_(pairs_from_halves(rows, head_dim).narrow(0, box.offset[0] - first, box.extent[0]));
}

}  // namespace

std::string Fit::counts() const {
  return fmt::format("{}/{} tensors, {} missing, {} unexpected", found, wanted, missing.size(), unexpected.size());
}

std::string Fit::complaint() const {
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back("missing: " + first_few(missing));
  if (!unexpected.empty()) parts.push_back("unexpected: " + first_few(unexpected));
  if (!unfit.empty()) parts.push_back(first_few(unfit));
  return join(parts, "; ");
}

Fit fit_of(const ForeignModel& model, const TensorSource& source) {
  Fit fit;
  std::map<std::string, const std::vector<int64_t>*> known;
  for (const ForeignTensor& tensor : model.tensors) {
    ++fit.wanted;
    known[tensor.name] = &tensor.shape;
    const auto stored = source.tensors().find(tensor.name);
    if (stored == source.tensors().end()) {
      fit.missing.push_back(tensor.name);
      continue;
    }
    const std::string why = obstacle(stored->second, tensor.shape);
    if (!why.empty()) {
      fit.unfit.push_back(why);
      continue;
    }
    ++fit.found;
    fit.parameters += numel_of(tensor.shape);
  }
  for (const auto& [name, stored] : source.tensors()) {
    if (!known.contains(name) && !model.copies.contains(name) && !is_ignored(model, name))
      fit.unexpected.push_back(name);
  }
  return fit;
}

ForeignModel named_as_in(ForeignModel model, const TensorSource& source) {
  constexpr std::string_view kBase = "model.";
  const auto rename = [&](std::string& name) {
    if (!name.starts_with(kBase) || source.tensors().contains(name)) return;
    if (std::string bare = name.substr(kBase.size()); source.tensors().contains(bare)) name = std::move(bare);
  };
  for (ForeignTensor& tensor : model.tensors) rename(tensor.name);
  std::map<std::string, std::string> copies;
  for (const auto& [copy, original] : model.copies) {
    std::string theirs = copy, its_original = original;
    rename(theirs);
    rename(its_original);
    copies[theirs] = its_original;
  }
  model.copies = std::move(copies);
  // Of a tied weight, a file may hold the second name alone: safetensors' save_model keeps one.
  std::erase_if(model.copies, [&](const auto& names) {
    const std::string &copy = names.first, &original = names.second;
    if (source.tensors().contains(original) || !source.tensors().contains(copy)) return false;
    for (ForeignTensor& tensor : model.tensors) {
      if (tensor.name == original) tensor.name = copy;
    }
    return true;
  });
  return model;
}

Fit check_fit(const ForeignModel& model, TensorSource& source) {
  Fit fit = fit_of(model, source);
  if (!fit.complete()) {
    throw MismatchError(
        fmt::format("{} holds another model: {}; {}", source.description(), fit.counts(), fit.complaint()));
  }
  for (const auto& [copy, original] : model.copies) {
    if (source.tensors().contains(copy) && !is_copy(source, copy, original)) {
      throw MismatchError(fmt::format("{}: {} differs from {}, and in this model both are one weight",
                                      source.description(), copy, original));
    }
  }
  return fit;
}

int64_t row_unit(const ForeignTensor& tensor) {
  return tensor.rotary_heads > 0 ? tensor.shape[0] / tensor.rotary_heads : 1;
}

int64_t rows_at_once(const LogicalTensor& tensor, int64_t unit) {
  const int64_t rows = tensor.shape.empty() ? 1 : std::max<int64_t>(1, tensor.shape[0]);
  const int64_t row_bytes = numel_of(tensor.shape) * static_cast<int64_t>(c10::elementSize(tensor.type)) / rows;
  return std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row_bytes * unit)) * unit;
}

void read_parameter(TensorSource& theirs, const ForeignTensor& tensor, const Box& box, const at::Tensor& into) {
  TITAN_CHECK(into.defined() && into.sizes() == at::IntArrayRef(box.extent) && c10::isFloatingType(into.scalar_type()),
              tensor.ours, summary_of(into), box.extent);
  if (box.numel() == 0) return;
  if (tensor.shape.empty()) return theirs.read(tensor.name, box, into);
  const int64_t step =
      rows_at_once({tensor.name, theirs.tensors().at(tensor.name).type, tensor.shape}, row_unit(tensor));
  for (int64_t done = 0; done < box.extent[0];) {
    const int64_t row = box.offset[0] + done;
    Box piece = box;
    piece.offset[0] = row;
    // A piece ends with a head, because rotary pairs are turned within one.
    piece.extent[0] = std::min(box.extent[0] - done, (row / step + 1) * step - row);
    const at::Tensor target = into.narrow(0, done, piece.extent[0]);
    if (tensor.rotary_heads > 0) {
      read_turned(theirs, tensor, piece, target);
    } else {
      theirs.read(tensor.name, piece, target);
    }
    done += piece.extent[0];
  }
}

at::Tensor read_their_rows(TensorSource& ours, const ForeignTensor& tensor, int64_t first, int64_t count) {
  const Box box = rows_of(tensor.shape, first, count);
  const at::Tensor rows = at::empty(box.extent, ours.tensors().at(tensor.ours).type);
  ours.read(tensor.ours, box, rows);
  return tensor.rotary_heads > 0 ? halves_from_pairs(rows, row_unit(tensor)) : rows;
}

ForeignModel own_form(std::span<const LogicalTensor> parameters) {
  ForeignModel model;
  for (const LogicalTensor& parameter : parameters)
    model.tensors.push_back({parameter.name, parameter.name, parameter.shape});
  return model;
}

at::Tensor pairs_from_halves(const at::Tensor& rows, int64_t head_dim) { return swapped(rows, 2, head_dim / 2); }
at::Tensor halves_from_pairs(const at::Tensor& rows, int64_t head_dim) { return swapped(rows, head_dim / 2, 2); }

namespace {

constexpr size_t kUncut = std::numeric_limits<size_t>::max();

/// The only dimension in which `whole` is `parts` times as long as `part`; kUncut if there is none: each file
/// has all of the tensor.
size_t cut_dimension(const std::vector<int64_t>& part, const std::vector<int64_t>& whole, int64_t parts) {
  if (part.size() != whole.size()) return kUncut;
  size_t cut = kUncut;
  for (size_t d = 0; d < part.size(); ++d) {
    if (part[d] == whole[d]) continue;
    if (cut != kUncut || part[d] * parts != whole[d]) return kUncut;
    cut = d;
  }
  return cut;
}

}  // namespace

MetaWeights::MetaWeights(Storage& storage, std::filesystem::path folder, const ForeignModel& model)
    : storage_(storage), folder_(std::move(folder)) {
  open_files();
  std::map<std::string, const std::vector<int64_t>*> shapes;
  for (const ForeignTensor& tensor : model.tensors) shapes[tensor.name] = &tensor.shape;
  for (const auto& [copy, original] : model.copies) shapes[copy] = shapes.at(original);
  for (const auto& [name, elements] : files_.front().tensors) {
    const auto known = shapes.find(name);
    join(name, known == shapes.end() ? nullptr : known->second);
  }
  for (size_t file = 1; file < files_.size(); ++file) {  // tensors that only a later file has are not sharded
    for (const auto& [name, elements] : files_[file].tensors) {
      if (!tensors_.try_emplace(name, LogicalTensor{name, elements.type, elements.shape}).second) continue;
      parts_[name] = {{file, whole_box(elements.shape), elements}};
    }
  }
}

void MetaWeights::open_files() {
  for (const StorageEntry& entry : storage_.list(folder_)) {  // list() sorts, so part N of a tensor is in the Nth file
    if (!entry.name.starts_with("consolidated.") || !entry.name.ends_with(".pth")) continue;
    const std::filesystem::path path = folder_ / entry.name;
    OpenFile file{std::make_unique<CheckedReader>(storage_, path, std::nullopt), {}};
    try {
      file.tensors = read_state_dict(*file.reader);
    } catch (const PickleError& error) {
      throw PickleError(fmt::format("{}: {}", path.string(), error.what()));
    } catch (const DamageError& error) {
      throw DamageError(fmt::format("{}: {}", path.string(), error.what()));
    }
    files_.push_back(std::move(file));
  }
  if (files_.empty() || files_.front().tensors.empty()) {
    throw Error(ExitCode::storage,
                fmt::format("{} holds no weights in files consolidated.NN.pth; name the folder that holds them",
                            folder_.string()));
  }
}

void MetaWeights::join(const std::string& name, const std::vector<int64_t>* whole) {
  const StoredElements first = files_.front().tensors.at(name);
  const auto parts = static_cast<int64_t>(files_.size());
  const size_t cut = whole ? cut_dimension(first.shape, *whole, parts) : kUncut;
  tensors_[name] = {name, first.type, cut == kUncut ? first.shape : *whole};
  if (cut == kUncut) {
    parts_[name] = {{0, whole_box(first.shape), first}};
    return;
  }
  for (size_t file = 0; file < files_.size(); ++file) {
    const auto found = files_[file].tensors.find(name);
    if (found == files_[file].tensors.end() || found->second.shape != first.shape || found->second.type != first.type) {
      throw DamageError(fmt::format("{} does not hold its part of {}", files_[file].reader->path().string(), name));
    }
    Box box = whole_box(first.shape);
    box.offset[cut] = static_cast<int64_t>(file) * first.shape[cut];
    parts_[name].push_back({file, std::move(box), found->second});
  }
}

void MetaWeights::read(const std::string& name, const Box& box, const at::Tensor& into) {
  TITAN_CHECK(into.defined() && into.sizes() == at::IntArrayRef(box.extent), name, summary_of(into), box.extent);
  for (const Part& part : parts_.at(name)) {
    Box in_part = box, in_target = box;
    bool meet = true;
    for (size_t d = 0; d < box.offset.size(); ++d) {
      const int64_t begin = std::max(box.offset[d], part.box.offset[d]);
      const int64_t end = std::min(box.offset[d] + box.extent[d], part.box.offset[d] + part.box.extent[d]);
      meet = meet && begin < end;
      in_part.offset[d] = begin - part.box.offset[d];
      in_target.offset[d] = begin - box.offset[d];
      in_part.extent[d] = in_target.extent[d] = end - begin;
    }
    if (meet) read_elements(*files_[part.file].reader, part.elements, in_part, narrowed(into, in_target));
  }
}

namespace {

/// An import reads and writes a tensor in parts of at most this size, so that no tensor has to fit into memory.
constexpr int64_t kImportedPieceBytes = int64_t{128} << 20;
/// Smaller tensors are not split: each part is a torch.save file of its own, with headers.
constexpr int64_t kSmallBytes = int64_t{1} << 20;

/// Throws StorageError if `path` exists.
void refuse_to_replace(Storage& storage, const std::filesystem::path& path) {
  for (const StorageEntry& entry : storage.list(path.has_parent_path() ? path.parent_path() : ".")) {
    if (entry.name == path.filename()) throw StorageError("write", path, EEXIST);
  }
}

/// The rows of part `rank` of `parts`; small tensors are whole in every part, and the plan chooses one.
BoxOfRank rows_of_part(const LogicalTensor& tensor, int64_t parts) {
  if (parts == 1 || tensor.shape.empty() || tensor.bytes() <= kSmallBytes) return whole_everywhere(tensor.shape);
  return [shape = tensor.shape, parts](int64_t rank) {
    const ChunkRange rows = ceil_chunk(shape[0], parts, rank);
    Box box{std::vector<int64_t>(shape.size(), 0), shape};
    box.offset[0] = rows.begin;
    box.extent[0] = rows.end - rows.begin;
    return box;
  };
}

/// Simulates the ranks of a save: one after the other, each with a part of every tensor.
struct Parts {
  std::vector<StateTensor> tensors;
  SavePlan plan;
};

Parts cut_into_parts(const std::vector<LogicalTensor>& tensors) {
  Parts parts;
  int64_t largest = 1;
  for (const LogicalTensor& tensor : tensors) largest = std::max(largest, tensor.bytes());
  const int64_t count = (largest + kImportedPieceBytes - 1) / kImportedPieceBytes;
  for (const LogicalTensor& tensor : tensors) parts.tensors.push_back({tensor, rows_of_part(tensor, count)});
  parts.plan = plan_save(parts.tensors, count);
  return parts;
}

void write_parts(Storage& storage, const StreamedState& state, const Parts& parts, const SavePlace& place) {
  std::map<std::string, FileRecord> files;
  for (size_t rank = 0; rank < parts.plan.size(); ++rank) {
    const std::vector<PlannedWrite>& writes = parts.plan[rank];
    const WrittenTensor written = [&](size_t index) { return state.read(writes[index].tensor, writes[index].box); };
    const auto number = static_cast<int64_t>(rank);
    const std::span<const SavedValue> values = rank == 0 ? state.values : std::span<const SavedValue>();
    const std::optional<FileRecord> record = write_data(storage, place, number, values, writes.size(), written);
    if (record) files[data_file(number)] = *record;
  }
  files[kIndexFile] = write_index_file(storage, place.temporary(), index_of(parts.plan, parts.tensors, state.values));
  const Manifest manifest{state.step, place.run, state.facts, std::move(files)};
  storage.write_all(place.temporary() / kManifestFile, write_manifest(manifest));
  storage.sync_folder(place.temporary());
}

}  // namespace

void write_streamed(Storage& storage, const StreamedState& state, const std::filesystem::path& folder) {
  const Parts parts = cut_into_parts(state.tensors);
  int64_t bytes = 0;
  for (const LogicalTensor& tensor : state.tensors) bytes += tensor.bytes();
  for (const SavedValue& value : state.values) bytes += std::ssize(value.blob);
  // The temporary name is fixed, so that the next import removes the files of a killed one.
  const SavePlace place{folder.has_parent_path() ? folder.parent_path() : ".", 0, folder.filename().string()};
  refuse_to_replace(storage, folder);
  begin_save(storage, place, bytes);
  try {
    write_parts(storage, state, parts, place);
    OpenCheckpoint(storage, place.temporary(), /*all_sizes=*/true).check_all();
    refuse_to_replace(storage, folder);  // it may have been created during the write
    storage.rename(place.temporary(), folder);
    storage.sync_folder(place.root);
  } catch (const Error&) {
    abandon_save(storage, place);
    throw;
  }
}

void import_weights(Storage& storage, TensorSource& theirs, const ForeignModel& model, at::ScalarType type,
                    const std::filesystem::path& folder, nlohmann::ordered_json facts) {
  StreamedState state;
  for (const ForeignTensor& tensor : model.tensors) state.tensors.push_back({tensor.ours, type, tensor.shape});
  state.read = [&](size_t index, const Box& box) {
    at::Tensor tensor = at::empty(box.extent, type);
    read_parameter(theirs, model.tensors[index], box, tensor);
    return tensor;
  };
  state.facts = std::move(facts);
  write_streamed(storage, state, folder);
}

}  // namespace titan
