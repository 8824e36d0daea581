#include "titan/checkpoint/load.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>

#include "titan/base/file_kind.h"
#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

constexpr size_t kReaders = 4;  // a rank saves up to four files, since one thread copies about 2 GB/s

CheckpointIndex read_index_file(CheckedReader& file) {
  check_index_begin(file.read(0, std::min(file.size(), static_cast<int64_t>(kKindBytes))));
  const std::string bytes = file.read(0, file.size());
  file.drop_cache();
  return read_index(bytes);
}

}  // namespace

OpenCheckpoint::OpenCheckpoint(Storage& storage, std::filesystem::path folder, bool all_sizes)
    : storage_(storage), folder_(std::move(folder)) {
  std::string bytes;
  try {
    bytes = storage_.read_all(folder_ / kManifestFile);
  } catch (const StorageError& error) {
    if (error.reason() != ENOENT) throw;
    read_unverified();
    return;
  }
  manifest_ = read_manifest(bytes);
  if (!manifest_->files.contains(kIndexFile)) throw DamageError("its manifest names no index");
  index_ = read_index_file(file(kIndexFile));
  if (all_sizes) check_sizes();
}

void OpenCheckpoint::read_unverified() {
  index_ = read_index_file(file(kIndexFile));
  if (index_.has_manifest) throw DamageError(fmt::format("{} is missing", (folder_ / kManifestFile).string()));
  check_sizes();
}

void OpenCheckpoint::check_sizes() {
  if (manifest_) {
    for (const auto& [name, record] : manifest_->files) file(name);
  }
  for (const auto& [name, end] : index_.file_ends()) {
    if (file(name).size() < end) {
      throw DamageError(
          fmt::format("{} has {} bytes, and its index needs {}", file(name).path().string(), file(name).size(), end));
    }
  }
}

CheckedReader& OpenCheckpoint::file(const std::string& name) {
  const auto known = files_.find(name);
  if (known != files_.end()) return *known->second;
  std::optional<FileRecord> record;
  if (manifest_) {
    const auto found = manifest_->files.find(name);
    if (found == manifest_->files.end()) throw DamageError(fmt::format("its manifest does not name {}", name));
    record = found->second;
  }
  auto reader = std::make_unique<CheckedReader>(storage_, folder_ / name, std::move(record));
  return *files_.emplace(name, std::move(reader)).first->second;
}

void OpenCheckpoint::load(std::span<const LoadTarget> targets) {
  struct Job {
    PlannedRead read;
    const LoadTarget* target;
  };
  std::vector<Job> jobs;
  for (const LoadTarget& target : targets) {
    TITAN_CHECK(target.into.defined() && target.into.sizes() == at::IntArrayRef(target.box.extent), target.tensor.name,
                summary_of(target.into), target.box.extent);
    for (PlannedRead& read : plan_load(index_, target.tensor, target.box)) jobs.push_back({std::move(read), &target});
    const at::ScalarType stored = index_.tensors.at(target.tensor.name).tensor.type;
    if (stored != target.tensor.type && !target.any_type) {
      throw MismatchError(fmt::format("its {} is {}, this run's is {}", target.tensor.name, python_name(stored),
                                      python_name(target.tensor.type)));
    }
    // Conversions of scalars are not reported: they are step counts, whose dtype no user chooses.
    if (stored != target.tensor.type && !target.tensor.shape.empty()) {
      conversion_ = fmt::format("{} read as {}", python_name(stored), python_name(target.tensor.type));
    }
  }
  // Sorted by file and offset, so that every block is read once.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tie(a.read.place.file, a.read.place.offset) < std::tie(b.read.place.file, b.read.place.offset);
  });
  std::vector<std::span<const Job>> by_file;
  for (size_t begin = 0, end = 0; begin < jobs.size(); begin = end) {
    const std::string& name = jobs[begin].read.place.file;
    while (end < jobs.size() && jobs[end].read.place.file == name) ++end;
    by_file.push_back(std::span<const Job>(jobs).subspan(begin, end - begin));
    file(name);  // opened here, because the threads below only look it up
  }
  // Copies to a GPU belong on this thread's stream.
  const bool on_cpu =
      std::all_of(targets.begin(), targets.end(), [](const LoadTarget& target) { return target.into.is_cpu(); });
  const size_t readers = on_cpu ? std::min(kReaders, by_file.size()) : 1;
  side_by_side(readers, [&](size_t reader) {
    for (size_t i = reader; i < by_file.size(); i += readers) {
      for (const Job& job : by_file[i]) read(job.read, *job.target);
      files_.at(by_file[i].front().read.place.file)->drop_cache();
    }
  });
}

StoredElements OpenCheckpoint::stored_chunk(const PlannedRead& read, const std::string& name) {
  StoredElements stored = read_tensor_blob(file(read.place.file), read.place.offset, read.place.length);
  const at::ScalarType type = index_.tensors.at(name).tensor.type;
  if (stored.shape != read.chunk_shape || stored.type != type) {
    throw DamageError(fmt::format("a chunk of {} is {} {} in {}, and {} {} in the index", name,
                                  python_name(stored.type), stored.shape, read.place.file, python_name(type),
                                  read.chunk_shape));
  }
  return stored;
}

void OpenCheckpoint::read(const PlannedRead& read, const LoadTarget& target) {
  const StoredElements stored = stored_chunk(read, target.tensor.name);
  read_elements(file(read.place.file), stored, read.in_chunk, narrowed(target.into, read.in_target));
}

void OpenCheckpoint::check_entries() {
  std::vector<std::pair<PlannedRead, const std::string*>> chunks;
  for (const auto& [name, stored] : index_.tensors) {
    for (PlannedRead& read : plan_load(index_, stored.tensor, whole_box(stored.tensor.shape))) {
      chunks.emplace_back(std::move(read), &name);
    }
  }
  // As in load(): every block is read once, and only one file's blocks are kept.
  std::sort(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.place.file, a.first.place.offset) < std::tie(b.first.place.file, b.first.place.offset);
  });
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto& [read, name] = chunks[i];
    stored_chunk(read, *name);
    const bool is_last = i + 1 == chunks.size() || chunks[i + 1].first.place.file != read.place.file;
    if (is_last) file(read.place.file).drop_cache();
  }
  if (!verified()) return;  // another program's may be of types that only the program itself reads
  for (const auto& [name, place] : index_.values) value(name);
}

PickleRef OpenCheckpoint::value(const std::string& name) {
  const auto found = index_.values.find(name);
  if (found == index_.values.end()) throw MismatchError(fmt::format("it has no value {}", name));
  return read_value_blob(file(found->second.file), found->second.offset, found->second.length);
}

void OpenCheckpoint::check_all() {
  check_sizes();
  for (const auto& [name, reader] : files_) reader->check_all();
}

namespace {

/// The intersection of two boxes; nothing if it is empty.
std::optional<Box> common(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (end <= begin) return std::nullopt;
    both.offset.push_back(begin);
    both.extent.push_back(end - begin);
  }
  return both;
}

Box relative_to(Box box, const Box& origin) {
  for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] -= origin.offset[d];
  return box;
}

/// True if two boxes overlap. Only boxes that overlap in dimension 0 are compared: few, with rows sharded over
/// thousands of ranks.
bool overlap(std::vector<Box> boxes) {
  if (boxes.empty() || boxes[0].offset.empty()) return boxes.size() > 1;
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.offset[0] < b.offset[0]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i].offset[0] + boxes[i].extent[0];
    for (size_t j = i + 1; j < boxes.size() && boxes[j].offset[0] < end; ++j) {
      if (common(boxes[i], boxes[j])) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<PlannedRead> plan_load(const CheckpointIndex& index, const LogicalTensor& tensor, const Box& box) {
  const auto found = index.tensors.find(tensor.name);
  if (found == index.tensors.end()) throw MismatchError(fmt::format("it has no tensor {}", tensor.name));
  const StoredTensor& stored = found->second;
  if (stored.tensor.shape != tensor.shape) {
    throw MismatchError(fmt::format("its {} has shape {}, this model's has {}", tensor.name,
                                    shape_text(stored.tensor.shape), shape_text(tensor.shape)));
  }
  std::vector<PlannedRead> reads;
  std::vector<Box> parts;
  int64_t covered = 0;
  for (const StoredChunk& chunk : stored.chunks) {
    const std::optional<Box> part = common(chunk.box, box);
    if (!part) continue;
    parts.push_back(*part);
    covered += part->numel();
    reads.push_back({chunk.place, relative_to(*part, chunk.box), relative_to(*part, box), chunk.box.extent});
  }
  if (overlap(std::move(parts))) throw DamageError(fmt::format("chunks of {} overlap", tensor.name));
  if (covered != box.numel()) throw DamageError(fmt::format("chunks of {} leave a part of it out", tensor.name));
  std::sort(reads.begin(), reads.end(), [](const PlannedRead& a, const PlannedRead& b) {
    return std::tie(a.place.file, a.place.offset) < std::tie(b.place.file, b.place.offset);
  });
  return reads;
}

}  // namespace titan
