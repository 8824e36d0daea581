#include "titan/checkpoint/hugging_face_export.h"

#include <ATen/ops/isfinite.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "titan/base/json.h"
#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/metadata.h"

namespace titan {
namespace {

/// Space for headers, manifest and file-system rounding in addition to the files: this much and 1/64.
constexpr int64_t kSpareBytes = int64_t{1} << 20;

/// `rows` in another dtype; values outside its range are an error.
at::Tensor converted(const at::Tensor& rows, at::ScalarType type, const std::string& name) {
  if (rows.scalar_type() == type) return rows.contiguous();
  at::Tensor result = rows.to(type).contiguous();
  if (type == at::kHalf && !at::isfinite(result).equal(at::isfinite(rows))) {
    throw Error(ExitCode::storage, fmt::format("{} holds numbers too large for float16; take bfloat16", name));
  }
  return result;
}

class Exporter {
 public:
  Exporter(Storage& storage, const HuggingFaceExport& wanted, TensorSource& weights)
      : storage_(storage),
        wanted_(wanted),
        weights_(weights),
        parent_(wanted.folder.has_parent_path() ? wanted.folder.parent_path() : "."),
        temporary_(parent_ / fmt::format("{}{}-{}", kSavingPrefix, wanted.folder.filename().string(), wanted.run)) {
    std::vector<at::ScalarType> types;
    for (const ForeignTensor& tensor : wanted.model.tensors) {
      types.push_back(wanted.type.value_or(weights.tensors().at(tensor.ours).type));
    }
    files_ = plan_export(wanted.model, types, wanted.most_bytes);
  }

  size_t files() const { return files_.size(); }
  const std::string& file_name(size_t file) const { return files_[file].name; }
  int64_t bytes() const {
    int64_t total = 0;
    for (const ExportedFile& file : files_) total += file.bytes();
    return total;
  }

  void begin() {
    storage_.make_folders(parent_);
    if (entry_at(storage_, wanted_.folder) && !wanted_.replace) throw StorageError("write", wanted_.folder, EEXIST);
    expect_no_file(storage_, wanted_.folder);
    const int64_t needed = bytes() + bytes() / 64 + kSpareBytes;
    if (storage_.free_bytes(parent_) < needed) {
      throw StorageError(fmt::format("write {} bytes to", needed), parent_, ENOSPC);
    }
    storage_.remove_folder(temporary_);  // left by an export that was killed
    storage_.make_folders(temporary_);
    storage_.sync_way_to(parent_);
  }

  FileRecord write_file(size_t index) {
    const ExportedFile& file = files_[index];
    HashingWriter out(storage_, temporary_ / file.name);
    out.write(safetensors_header(file.tensors, {{"format", "pt"}}));
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      write_tensor(out, wanted_.model.tensors[file.places[i]], file.tensors[i].type);
    }
    return out.finish();
  }

  void commit(std::map<std::string, FileRecord> records) {
    std::vector<CompanionFile> companions = wanted_.companions;
    if (files_.size() > 1) companions.push_back({kSafetensorsIndex, index()});
    for (const CompanionFile& file : companions) {
      storage_.write_all(temporary_ / file.name, file.content);
      records[file.name] = record_of(file.content);
    }
    Manifest manifest{wanted_.step, wanted_.run, {{"format", "Hugging Face"}}, std::move(records)};
    manifest.facts.update(wanted_.facts);
    storage_.write_all(temporary_ / kExportManifest, write_manifest(manifest));
    storage_.sync_folder(temporary_);
    read_back();
    publish();
  }

  void abandon() {
    try {
      storage_.remove_folder(temporary_);
    } catch (const StorageError&) {  // the next export removes it
    }
  }

 private:
  void write_tensor(HashingWriter& out, const ForeignTensor& tensor, at::ScalarType type) {
    const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const int64_t step = rows_at_once(weights_.tensors().at(tensor.ours), row_unit(tensor));
    for (int64_t row = 0; row < rows; row += step) {
      const at::Tensor piece =
          converted(read_their_rows(weights_, tensor, row, std::min(step, rows - row)), type, tensor.ours);
      out.write({static_cast<const char*>(piece.const_data_ptr()), piece.nbytes()});
    }
  }

  std::string index() const {
    nlohmann::ordered_json map = nlohmann::ordered_json::object();
    for (const ExportedFile& file : files_) {
      for (const LogicalTensor& tensor : file.tensors) map[tensor.name] = file.name;
    }
    return nlohmann::ordered_json{{"metadata", {{"total_size", bytes()}}}, {"weight_map", std::move(map)}}.dump(2) +
           "\n";
  }

  /// Verifies the folder: every tensor, and the hash of every byte.
  void read_back() {
    SafetensorsFolder written(storage_, temporary_);
    for (const ExportedFile& file : files_) {
      std::vector<LogicalTensor> found;
      for (const SafetensorsEntry& entry : written.files().at(file.name)) found.push_back(entry.tensor);
      if (found != file.tensors) {
        throw DamageError(fmt::format("{} reads back differently", (temporary_ / file.name).string()));
      }
    }
    written.check_all();
  }

  void publish() {
    const std::filesystem::path old =
        parent_ / fmt::format("{}{}-{}", kDeletingPrefix, wanted_.step, wanted_.run);  // clean_leftovers knows the form
    const std::optional<StorageEntry> former = entry_at(storage_, wanted_.folder);
    const bool replaces = former.has_value(), replaces_link = former && former->is_link;
    if (replaces && !wanted_.replace) throw StorageError("write", wanted_.folder, EEXIST);  // created during the export
    if (replaces) storage_.rename(wanted_.folder, old);
    storage_.rename(temporary_, wanted_.folder);
    storage_.sync_folder(parent_);
    if (replaces && !replaces_link) storage_.remove_folder(old);
    if (replaces_link) put_away_replaced(storage_, parent_, old, wanted_.step);
  }

  Storage& storage_;
  const HuggingFaceExport& wanted_;
  TensorSource& weights_;
  std::filesystem::path parent_, temporary_;
  std::vector<ExportedFile> files_;
};

/// Writes this rank's files; returns their records or the problem, as JSON for the other ranks.
std::string write_some(Exporter& exporter, int64_t rank, int64_t ranks) {
  nlohmann::json report{{"files", nlohmann::json::object()}};
  report["problem"] = problem_of([&] {
    for (auto file = static_cast<size_t>(rank); file < exporter.files(); file += static_cast<size_t>(ranks)) {
      const FileRecord record = exporter.write_file(file);
      report["files"][exporter.file_name(file)] = {{"bytes", record.bytes}, {"xxh3_128", record.hashes}};
    }
  });
  return json_text(report);
}

/// The files of all ranks, from their reports; `problem` is set if a rank failed.
std::map<std::string, FileRecord> records_of(const std::vector<std::string>& reports, std::string& problem) {
  std::map<std::string, FileRecord> records;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    read_words(reports[rank], rank, [&](const nlohmann::json& report) {
      const auto failed = report.at("problem").get<std::string>();
      if (!failed.empty() && problem.empty()) {
        problem = reports.size() == 1 ? failed : fmt::format("rank {}: {}", rank, failed);
      }
      for (const auto& [name, file] : report.at("files").items()) {
        records[name] = {file.at("bytes").get<int64_t>(), file.at("xxh3_128").get<std::vector<std::string>>()};
      }
    });
  }
  return records;
}

std::string run_phases(Exporter& exporter, RankBarrier& barrier) {
  const bool leads = barrier.rank() == 0;
  std::string problem;
  if (leads) problem = problem_of([&] { exporter.begin(); });
  problem = barrier.tell(problem);
  if (!problem.empty()) return problem;
  const std::string mine = write_some(exporter, barrier.rank(), barrier.size());
  return barrier.decide(mine, [&](const std::vector<std::string>& reports) {
    std::string found;
    std::map<std::string, FileRecord> records = records_of(reports, found);
    if (found.empty()) found = problem_of([&] { exporter.commit(std::move(records)); });
    if (!found.empty()) exporter.abandon();
    return found;
  });
}

}  // namespace

int64_t ExportedFile::bytes() const {
  int64_t total = 0;
  for (const LogicalTensor& tensor : tensors) total += tensor.bytes();
  return total;
}

std::vector<ExportedFile> plan_export(const ForeignModel& model, const std::vector<at::ScalarType>& types,
                                      int64_t most_bytes) {
  std::vector<ExportedFile> files;
  int64_t in_file = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    LogicalTensor tensor{model.tensors[i].name, types[i], model.tensors[i].shape};
    const int64_t bytes = tensor.bytes();
    if (files.empty() || in_file + bytes > most_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    in_file += bytes;
    files.back().tensors.push_back(std::move(tensor));
    files.back().places.push_back(i);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name =
        files.size() == 1 ? kSafetensorsFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  }
  return files;
}

SaveOutcome export_together(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted,
                            TensorSource& weights) {
  const auto start = std::chrono::steady_clock::now();
  Exporter exporter(storage, wanted, weights);
  SaveOutcome outcome{wanted.step, false, {}, wanted.folder, exporter.bytes(), 0};
  outcome.problem = run_phases(exporter, barrier);
  outcome.committed = outcome.problem.empty();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

namespace {

/// The first problem of any rank, with its number if there are several; the same on all ranks.
std::string agreed(RankBarrier& barrier, const std::string& mine) {
  return barrier.decide(mine, [](const std::vector<std::string>& all) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].empty()) return all.size() == 1 ? all[rank] : fmt::format("{} (rank {})", all[rank], rank);
    }
    return std::string();
  });
}

void read_boxes(TensorSource& weights, const ForeignModel& model, std::span<const SavedParameter> parameters,
                int64_t rank) {
  std::map<std::string, const ForeignTensor*> by_name;
  for (const ForeignTensor& tensor : model.tensors) by_name[tensor.ours] = &tensor;
  for (const SavedParameter& parameter : parameters) {
    const std::optional<Box> box = parameter.box_of(rank);
    if (!box || box->numel() == 0) continue;
    const auto found = by_name.find(parameter.name);
    TITAN_CHECK(found != by_name.end() && found->second->shape == parameter.shape, parameter.name);
    read_parameter(weights, *found->second, *box, parameter.master);
  }
}

std::filesystem::path parts_root(const HuggingFaceExport& wanted) {
  return wanted.folder.parent_path() / fmt::format("{}{}-{}-parts", kSavingPrefix, wanted.step, wanted.run);
}

/// Writes the shards as a temporary checkpoint.
SaveOutcome save_parts(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted,
                       const CheckpointState& state) {
  return save_together(storage, barrier, {parts_root(wanted), wanted.step, wanted.run}, state,
                       plan_save(state.tensors, barrier.size(), 1, 0, writes_needed_by(barrier.rank())));
}

/// Writes the export from the shards of all ranks.
SaveOutcome export_parts(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted) {
  std::optional<OpenCheckpoint> parts;
  const std::filesystem::path folder = parts_root(wanted) / step_folder(wanted.step);
  const auto open = [&] { parts.emplace(storage, folder, /*all_sizes=*/barrier.rank() == 0); };
  const std::string problem = agreed(barrier, problem_of(open));
  if (!problem.empty()) return {wanted.step, false, problem, wanted.folder, 0, 0};
  CheckpointSource weights(*parts);
  return export_together(storage, barrier, wanted, weights);
}

}  // namespace

HuggingFaceWeights read_hugging_face(Storage& storage, const std::filesystem::path& folder,
                                     std::optional<ScaleBlock> quantised, const ForeignModel& wanted,
                                     std::span<const SavedParameter> parameters, int64_t rank) {
  SafetensorsFolder stored(storage, folder);
  std::optional<BlockScaledWeights> scaled;
  if (quantised) scaled.emplace(stored, *quantised);
  TensorSource& weights = scaled ? static_cast<TensorSource&>(*scaled) : stored;
  const ForeignModel model = named_as_in(wanted, weights);
  // One rank is enough to compare the second copies of tied weights, which reads both.
  const Fit fit = rank == 0 ? check_fit(model, weights) : fit_of(model, weights);
  if (fit.complete()) read_boxes(weights, model, parameters, rank);
  const std::optional<Manifest>& manifest = stored.manifest();
  return {fit.counts(), stored.verified(), manifest ? std::optional(manifest->step) : std::nullopt, stored.note()};
}

LoadOutcome load_hugging_face_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder,
                                       std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                       std::span<const SavedParameter> parameters) {
  LoadOutcome outcome;
  const auto load = [&] {
    const HuggingFaceWeights read = read_hugging_face(storage, folder, quantised, model, parameters, barrier.rank());
    outcome.verified = read.verified;
    outcome.line = fmt::format("LOAD: {} from {} (Hugging Face, {}{})", read.counts, folder.string(),
                               quantised ? "quantised, " : "", outcome.verified ? "verified" : "unverified");
    if (!read.note.empty() && barrier.rank() == 0) outcome.warnings.push_back(read.note);
  };
  const std::string problem = agreed(barrier, problem_of(load));
  if (!problem.empty()) {
    throw Error(ExitCode::storage, fmt::format("{} cannot be loaded: {}", folder.string(), problem));
  }
  outcome.folder = folder;
  return outcome;
}

SaveOutcome save_hugging_face_together(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted,
                                       const CheckpointState& state) {
  SaveOutcome outcome = save_parts(storage, barrier, wanted, state);
  const double seconds = outcome.seconds;
  if (outcome.committed) outcome = export_parts(storage, barrier, wanted);
  outcome.folder = wanted.folder;
  outcome.seconds += seconds;
  if (barrier.rank() == 0) {
    problem_of([&] { storage.remove_folder(parts_root(wanted)); });  // leftovers are removed at the next start
  }
  return outcome;
}

}  // namespace titan
