#include "titan/checkpoint/read_checkpoint.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>

#include "side_by_side.h"

namespace titan {
namespace {

constexpr size_t kReaders = 4;  // files that are read at once

at::Tensor narrowed(at::Tensor tensor, const Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return tensor;
}

/// Elements that follow each other in memory when the last dimensions are walked: the size of one run.
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

/// Reads `sizes` elements that lie in `file` from `first_byte` on with `strides` into `into`, a CPU tensor of the same
/// sizes and dtype, run by run. Both must have runs of more than single elements to be worth it.
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
    for (; d >= 0; --d) {  // the next index, last dimension fastest
      const auto place = static_cast<size_t>(d);
      if (++index[place] < into.size(d)) break;
      index[place] = 0;
    }
    if (d < 0) return;
  }
}

/// The whole chunk as a tensor of its own: for strides that no run of memory has.
at::Tensor read_chunk(CheckedReader& file, const StoredElements& stored) {
  const auto element = static_cast<int64_t>(c10::elementSize(stored.type));
  at::Tensor storage = at::empty({stored.storage_bytes / element}, stored.type);
  file.read(stored.storage_byte,
            {static_cast<char*>(storage.mutable_data_ptr()), static_cast<size_t>(storage.nbytes())});
  return storage.as_strided(stored.shape, stored.strides, (stored.first_byte - stored.storage_byte) / element);
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
  CheckedReader& index = file(kIndexFile);
  index_ = read_index(index.read(0, index.size()));
  if (all_sizes) check_sizes();
}

void OpenCheckpoint::read_unverified() {
  CheckedReader& index = file(kIndexFile);
  index_ = read_index(index.read(0, index.size()));
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
    TITAN_CHECK(target.into.sizes() == at::IntArrayRef(target.box.extent), target.tensor.name);
    for (PlannedRead& read : plan_load(index_, target.tensor, target.box)) jobs.push_back({std::move(read), &target});
    const at::ScalarType stored = index_.tensors.at(target.tensor.name).tensor.type;
    if (stored != target.tensor.type && !target.any_type) {
      throw MismatchError(fmt::format("its {} is {}, this run's is {}", target.tensor.name, python_name(stored),
                                      python_name(target.tensor.type)));
    }
  }
  // In the order of the files, so that every block is read once.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tie(a.read.place.file, a.read.place.offset) < std::tie(b.read.place.file, b.read.place.offset);
  });
  std::vector<std::span<const Job>> by_file;
  for (size_t begin = 0, end = 0; begin < jobs.size(); begin = end) {
    const std::string& name = jobs[begin].read.place.file;
    while (end < jobs.size() && jobs[end].read.place.file == name) ++end;
    by_file.push_back(std::span<const Job>(jobs).subspan(begin, end - begin));
    file(name);  // opened here: the threads below only look it up
  }
  // Copies to a GPU belong on this thread's stream.
  const bool on_cpu =
      std::all_of(targets.begin(), targets.end(), [](const LoadTarget& target) { return target.into.is_cpu(); });
  const size_t readers = on_cpu ? std::min(kReaders, by_file.size()) : 1;
  side_by_side(readers, [&](size_t reader) {
    for (size_t i = reader; i < by_file.size(); i += readers) {
      for (const Job& job : by_file[i]) read(job.read, *job.target);
    }
  });
}

void OpenCheckpoint::read(const PlannedRead& read, const LoadTarget& target) {
  CheckedReader& source = file(read.place.file);
  const StoredElements stored = read_tensor_blob(source, read.place.offset, read.place.length);
  if (stored.shape != read.chunk_shape || stored.type != index_.tensors.at(target.tensor.name).tensor.type) {
    throw DamageError(fmt::format("a chunk of {} is not what the index says", target.tensor.name));
  }
  const at::Tensor region = narrowed(target.into, read.in_target);
  const bool rows = !stored.strides.empty() && stored.strides.back() == 1;
  const bool whole_rows = rows || stored.shape.empty() || stored.shape.back() == 1;
  if (!whole_rows) {
    region.copy_(narrowed(read_chunk(source, stored), read.in_chunk));
    return;
  }
  int64_t first = stored.first_byte;
  for (size_t d = 0; d < stored.strides.size(); ++d) {
    first += read.in_chunk.offset[d] * stored.strides[d] * static_cast<int64_t>(c10::elementSize(stored.type));
  }
  if (region.is_cpu() && region.scalar_type() == stored.type && (region.dim() == 0 || region.stride(-1) == 1)) {
    read_runs(source, first, stored.strides, region);
    return;
  }
  const at::Tensor staged = at::empty(read.in_target.extent, stored.type);
  read_runs(source, first, stored.strides, staged);
  region.copy_(staged);
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

}  // namespace titan
