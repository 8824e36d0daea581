#include "titan/checkpoint/meta_weights.h"

#include <algorithm>
#include <limits>

#include "elements.h"
#include "titan/checkpoint/state_dict.h"

namespace titan {
namespace {

Box whole_box(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

/// No dimension: the tensor is whole in every file.
constexpr size_t kUncut = std::numeric_limits<size_t>::max();

/// The only dimension in which `whole` is `parts` times as long as `part`; kUncut when there is none such.
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
  for (size_t file = 1; file < files_.size(); ++file) {  // what only a later one has is nothing that was cut
    for (const auto& [name, elements] : files_[file].tensors) {
      if (!tensors_.try_emplace(name, LogicalTensor{name, elements.type, elements.shape}).second) continue;
      parts_[name] = {{file, whole_box(elements.shape), elements}};
    }
  }
}

void MetaWeights::open_files() {
  for (const StorageEntry& entry : storage_.list(folder_)) {  // sorted, so by number
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
    throw Error(ExitCode::storage, fmt::format("{} holds no weights in files consolidated.NN.pth", folder_.string()));
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

}  // namespace titan
