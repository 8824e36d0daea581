#include "titan/checkpoint/save.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/ops/tensor_checks.h"
#include "titan/plan/plan.h"

namespace titan {
namespace {

/// A write and the ranks that could make it, ascending.
struct HeldBox {
  PlannedWrite write;
  std::vector<int64_t> ranks;
};

/// The boxes of the tensor at `index`.
std::vector<HeldBox> held_boxes(std::span<const StateTensor> tensors, size_t index, int64_t ranks) {
  const auto& [tensor, box_of, local] = tensors[index];
  std::vector<std::pair<Box, int64_t>> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::optional<Box> box = box_of(rank);
    if (box && box->numel() > 0) all.emplace_back(std::move(*box), rank);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.offset, a.first.extent) < std::tie(b.first.offset, b.first.extent);
  });
  std::vector<HeldBox> held;
  int64_t elements = 0;
  for (auto& [box, rank] : all) {
    if (held.empty() || !(held.back().write.box == box)) {
      elements += box.numel();
      held.push_back({{index, std::move(box)}, {}});
    }
    held.back().ranks.push_back(rank);
  }
  const int64_t whole = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  TITAN_CHECK(elements == whole && "the boxes cover the tensor once", tensor.name, elements, whole);
  return held;
}

/// Files of about equal size: a write belongs to the file that contains its middle.
void cut_into_files(std::vector<PlannedWrite>& writes, std::span<const StateTensor> tensors, int64_t most_files,
                    int64_t least_file_bytes) {
  const auto bytes_of = [&](const PlannedWrite& write) { return tensors[write.tensor].tensor.bytes_of(write.box); };
  int64_t total = 0, before = 0, last = 0, number = -1;
  for (const PlannedWrite& write : writes) total += bytes_of(write);
  const int64_t files = std::clamp<int64_t>(least_file_bytes > 0 ? total / least_file_bytes : most_files, 1,
                                            std::max<int64_t>(1, most_files));
  for (PlannedWrite& write : writes) {
    const int64_t bytes = bytes_of(write);
    const int64_t place = total == 0 ? 0 : std::min(files - 1, (before + bytes / 2) / (total / files + 1));
    if (number < 0 || place != last) ++number;  // a large tensor may skip a place; file numbers stay consecutive
    last = place;
    write.file = number;
    before += bytes;
  }
}

}  // namespace

BoxOfRank boxes_of(const TensorLayout& layout, const DeviceMesh& mesh, std::vector<int64_t> stages) {
  return [layout, mesh, stages = std::move(stages)](int64_t rank) -> std::optional<Box> {
    const bool holds =
        stages.empty() || std::find(stages.begin(), stages.end(), mesh.coordinate(rank, MeshAxis::pp)) != stages.end();
    if (!holds) return std::nullopt;
    return shard_on(layout, mesh, rank);
  };
}

BoxOfRank whole_everywhere(std::vector<int64_t> shape) {
  return [box = Box{std::vector<int64_t>(shape.size(), 0), shape}](int64_t) { return box; };
}

SavePlan plan_save(std::span<const StateTensor> tensors, int64_t ranks, int64_t most_files, int64_t least_file_bytes,
                   std::optional<int64_t> only) {
  SavePlan plan(static_cast<size_t>(ranks));
  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  const auto bytes_of = [&](const PlannedWrite& write) { return tensors[write.tensor].tensor.bytes_of(write.box); };
  const auto give = [&](int64_t rank, const PlannedWrite& write) {
    if (!only || *only == rank) plan[static_cast<size_t>(rank)].push_back(write);
    bytes[static_cast<size_t>(rank)] += bytes_of(write);
  };
  std::vector<HeldBox> shared;
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (HeldBox& held : held_boxes(tensors, t, ranks)) {
      if (held.ranks.size() == 1) {
        give(held.ranks[0], held.write);
      } else {
        shared.push_back(std::move(held));
      }
    }
  }
  // Boxes with a choice of ranks come after those without, and the largest first: the small ones even out the bytes.
  std::stable_sort(shared.begin(), shared.end(),
                   [&](const HeldBox& a, const HeldBox& b) { return bytes_of(a.write) > bytes_of(b.write); });
  for (const HeldBox& held : shared) {
    const auto least = std::min_element(held.ranks.begin(), held.ranks.end(), [&](int64_t a, int64_t b) {
      return bytes[static_cast<size_t>(a)] < bytes[static_cast<size_t>(b)];
    });
    give(*least, held.write);
  }
  // Writes are sorted by tensor, so that tensors that are read together are adjacent.
  for (std::vector<PlannedWrite>& writes : plan) {
    std::stable_sort(writes.begin(), writes.end(),
                     [](const PlannedWrite& a, const PlannedWrite& b) { return a.tensor < b.tensor; });
    cut_into_files(writes, tensors, most_files, least_file_bytes);
  }
  return plan;
}

std::vector<std::span<const PlannedWrite>> files_of(std::span<const PlannedWrite> writes) {
  std::vector<std::span<const PlannedWrite>> files;
  size_t begin = 0;
  for (size_t i = 1; i < writes.size(); ++i) {
    if (writes[i].file == writes[i - 1].file) continue;
    files.push_back(writes.subspan(begin, i - begin));
    begin = i;
  }
  files.push_back(writes.subspan(begin));
  return files;
}

CheckpointIndex index_of(const SavePlan& plan, std::span<const StateTensor> tensors,
                         std::span<const SavedValue> values) {
  CheckpointIndex index;
  for (const StateTensor& one : tensors) {
    const bool fresh = index.tensors.emplace(one.tensor.name, StoredTensor{one.tensor, {}}).second;
    TITAN_CHECK(fresh && "a name is used once", one.tensor.name);
  }
  std::map<std::string, int64_t> ends;
  const auto append = [&](const std::string& file, int64_t length) {
    int64_t& end = ends[file];
    end += length;
    return BlobPlace{file, end - length, length};
  };
  for (const SavedValue& value : values) {
    index.values[value.name] = append(data_file(0), static_cast<int64_t>(value.blob.size()));
  }
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    for (const PlannedWrite& write : plan[rank]) {
      const LogicalTensor& tensor = tensors[write.tensor].tensor;
      const int64_t length = tensor_blob_bytes(tensor.type, write.box.extent);
      const BlobPlace place = append(data_file(static_cast<int64_t>(rank), write.file), length);
      index.tensors[tensor.name].chunks.push_back({write.box, place});
    }
  }
  return index;
}

namespace {

/// Writes a rank's data files, one thread each: hashing and copying are bound by one core.
std::map<std::string, FileRecord> write_files(Storage& storage, const SavePlace& place, int64_t rank,
                                              std::span<const SavedValue> values, std::span<const PlannedWrite> writes,
                                              const WrittenTensor& written) {
  const std::vector<std::span<const PlannedWrite>> parts = files_of(writes);
  std::vector<std::optional<FileRecord>> records(parts.size());
  side_by_side(parts.size(), [&](size_t file) {
    const bool has_values = rank == 0 && file == 0;
    const auto begin = static_cast<size_t>(parts[file].data() - writes.data());
    records[file] = write_data(
        storage, place, rank, has_values ? values : std::span<const SavedValue>(), parts[file].size(),
        [&](size_t i) { return written(begin + i); }, static_cast<int64_t>(file));
  });
  std::map<std::string, FileRecord> files;
  for (size_t file = 0; file < records.size(); ++file) {
    if (records[file]) files[data_file(rank, static_cast<int64_t>(file))] = std::move(*records[file]);
  }
  return files;
}

/// A rank's message about its data files.
nlohmann::json report_of(const std::string& problem, const std::map<std::string, FileRecord>& files) {
  nlohmann::json report{{"problem", problem}, {"files", nlohmann::json::object()}};
  for (const auto& [name, record] : files) {
    report["files"][name] = {{"bytes", record.bytes}, {"xxh3_128", record.hashes}};
  }
  return report;
}

/// The data files of all ranks; `problem` is set if a rank failed.
std::map<std::string, FileRecord> read_reports(const std::vector<std::string>& reports, std::string& problem) {
  std::map<std::string, FileRecord> files;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    read_words(reports[rank], rank, [&](const nlohmann::json& report) {
      const auto failed = report.at("problem").get<std::string>();
      if (!failed.empty() && problem.empty()) problem = fmt::format("rank {}: {}", rank, failed);
      for (const auto& [name, file] : report.at("files").items()) {
        files[name] = {file.at("bytes").get<int64_t>(), file.at("xxh3_128").get<std::vector<std::string>>()};
      }
    });
  }
  return files;
}

int64_t total_bytes(const CheckpointIndex& index) {
  int64_t bytes = 0;
  for (const auto& [name, end] : index.file_ends()) bytes += end;
  return bytes;
}

/// Runs the phases; returns the problem, empty if committed. `write`: writes this rank's files.
std::string run_phases(Storage& storage, RankBarrier& barrier, const SavePlace& place, const CheckpointIndex& index,
                       const nlohmann::ordered_json& facts,
                       const std::function<std::map<std::string, FileRecord>()>& write) {
  const bool leads = barrier.rank() == 0;
  std::string problem;
  if (leads) problem = problem_of([&] { begin_save(storage, place, total_bytes(index)); });
  problem = barrier.tell(problem);
  if (!problem.empty()) return problem;

  std::map<std::string, FileRecord> mine;
  problem = problem_of([&] { mine = write(); });
  // Only rank 0 needs the records of all files: it writes the manifest.
  return barrier.decide(json_text(report_of(problem, mine)), [&](const std::vector<std::string>& reports) {
    std::string found;
    std::map<std::string, FileRecord> files = read_reports(reports, found);
    if (found.empty()) found = problem_of([&] { commit_save(storage, place, index, std::move(files), facts); });
    if (!found.empty()) abandon_save(storage, place);
    return found;
  });
}

}  // namespace

at::Tensor local_part(const StateTensor& tensor, const PlannedWrite& write) {
  TITAN_CHECK(tensor.local.defined() && tensor.local.sizes() == at::IntArrayRef(write.box.extent) &&
                  tensor.local.scalar_type() == tensor.tensor.type,
              tensor.tensor.name, summary_of(tensor.local), write.box.extent, c10::toString(tensor.tensor.type));
  return tensor.local.detach();
}

at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write) {
  return local_part(tensor, write).to(at::kCPU).contiguous();
}

std::string SaveOutcome::sentence() const {
  if (committed) {
    return fmt::format("checkpoint {} committed: {}, {} in {:.2f} s", step, folder.string(),
                       human_bytes(static_cast<double>(bytes)), seconds);
  }
  return fmt::format("checkpoint {} was not saved: {}", step, problem);
}

SaveOutcome save_together(Storage& storage, RankBarrier& barrier, const SavePlace& place, const CheckpointState& state,
                          const SavePlan& plan, const WrittenTensor& written) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t rank = barrier.rank();
  const std::vector<PlannedWrite>& writes = plan[static_cast<size_t>(rank)];
  const WrittenTensor own = [&](size_t i) { return written_part(state.tensors[writes[i].tensor], writes[i]); };
  // Other ranks need no index.
  const CheckpointIndex index = rank == 0 ? index_of(plan, state.tensors, state.values) : CheckpointIndex();
  SaveOutcome outcome{place.step, false, {}, place.final(), total_bytes(index), 0};
  outcome.problem = run_phases(storage, barrier, place, index, state.facts, [&] {
    return write_files(storage, place, rank, state.values, writes, written ? written : own);
  });
  outcome.committed = outcome.problem.empty();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

void side_by_side(size_t count, const std::function<void(size_t)>& act) {
  std::vector<std::exception_ptr> failures(count);
  const auto act_on = [&](size_t i) {
    try {
      act(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  std::vector<size_t> here{0};
  threads.reserve(count);
  for (size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back(act_on, i);
    } catch (const std::system_error&) {  // at the limit of threads this one does their work
      here.push_back(i);
    }
  }
  for (const size_t i : here) {
    if (i < count) act_on(i);
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace titan
