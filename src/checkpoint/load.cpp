#include "titan/checkpoint/load.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <stdexcept>

#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/distributed/rank_check.h"

namespace titan {
namespace {

constexpr size_t kReaders = 4;  // a rank saves up to four files, since one thread copies about 2 GB/s

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
    // A scalar is a step count, whose type no user chooses: its conversion is no news.
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

void OpenCheckpoint::read(const PlannedRead& read, const LoadTarget& target) {
  CheckedReader& source = file(read.place.file);
  const StoredElements stored = read_tensor_blob(source, read.place.offset, read.place.length);
  if (stored.shape != read.chunk_shape || stored.type != index_.tensors.at(target.tensor.name).tensor.type) {
    throw DamageError(fmt::format("a chunk of {} is not what the index says", target.tensor.name));
  }
  read_elements(source, stored, read.in_chunk, narrowed(target.into, read.in_target));
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

namespace {

/// One rank's result for one checkpoint, worst last.
enum class Fate { loaded, unsuitable, unreadable, damaged, forbidden, unfit };

struct Verdict {
  Fate fate = Fate::loaded;
  std::string why;
  int code = 0;  // unfit: the exit code
};

Verdict try_checkpoint(const std::function<void()>& act) {
  const auto failed = [](Fate fate, const Error& error) {
    return Verdict{fate, error.what(), static_cast<int>(error.code())};
  };
  try {
    act();
    return {};
  } catch (const UnsuitableError& error) {
    return failed(Fate::unsuitable, error);
  } catch (const DamageError& error) {
    return failed(Fate::damaged, error);
  } catch (const PickleError& error) {
    return failed(Fate::damaged, error);
  } catch (const StorageError& error) {
    const bool is_forbidden = error.reason() == EACCES || error.reason() == EPERM;
    return failed(is_forbidden ? Fate::forbidden : Fate::unreadable, error);
  } catch (const InvariantError&) {  // a fault of this program says nothing about the checkpoint
    throw;
  } catch (const Error& error) {  // another model, a newer format, another corpus: an older one would not fit either
    return failed(Fate::unfit, error);
  }
}

/// The worst result of all ranks, with the rank's number if there are several.
Verdict agreed(RankBarrier& barrier, const Verdict& mine) {
  const nlohmann::json message{{"fate", static_cast<int>(mine.fate)}, {"why", mine.why}, {"code", mine.code}};
  const std::vector<std::string> all = barrier.exchange(json_text(message));
  Verdict worst;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Verdict one;
    read_words(all[rank], rank, [&](const nlohmann::json& message) {
      const int fate = message.at("fate").get<int>();
      one = {static_cast<Fate>(fate), message.at("why").get<std::string>(), message.at("code").get<int>()};
      const bool is_fate = fate >= 0 && fate <= static_cast<int>(Fate::unfit);
      if (!is_fate || (one.fate == Fate::unfit && !is_failure_code(one.code))) throw std::out_of_range("no verdict");
    });
    if (one.fate <= worst.fate) continue;
    if (all.size() > 1) one.why += fmt::format(" (rank {})", rank);
    worst = one;
  }
  return worst;
}

/// Rank 0 lists the checkpoints, so that all ranks try the same ones.
std::vector<FoundCheckpoint> agreed_candidates(Storage& storage, RankBarrier& barrier,
                                               const std::filesystem::path& root) {
  nlohmann::json message{{"problem", ""}, {"steps", nlohmann::json::array()}};
  if (barrier.rank() == 0) {
    try {
      for (const FoundCheckpoint& found : find_checkpoints(storage, root)) {
        message["steps"].push_back({found.step, found.is_export});
      }
    } catch (const StorageError& error) {
      message["problem"] = error.what();
    }
  }
  std::string problem;
  std::vector<std::pair<int64_t, bool>> steps;
  read_words(barrier.exchange(json_text(message)).front(), 0, [&](const nlohmann::json& heard) {
    problem = heard.at("problem").get<std::string>();
    steps = heard.at("steps").get<std::vector<std::pair<int64_t, bool>>>();
  });
  if (!problem.empty()) {
    throw Error(ExitCode::storage,
                problem + "; checkpoint.folder (under job.dump_folder) must be a folder that this user can read");
  }
  std::vector<FoundCheckpoint> candidates;
  for (const auto& [step, is_export] : steps) {
    candidates.push_back({.step = step, .is_export = is_export});
  }
  return candidates;
}

struct Failure {
  FoundCheckpoint candidate;
  Verdict verdict;

  std::string sentence() const {
    const int64_t step = candidate.step;
    if (verdict.fate == Fate::unsuitable) return fmt::format("step {} {}", step, verdict.why);
    return fmt::format("step {} is {}: {}", step, verdict.fate == Fate::damaged ? "damaged" : "unreadable",
                       verdict.why);
  }
};

std::string joined(const std::vector<Failure>& failures) {
  std::vector<std::string> sentences;
  for (const Failure& failure : failures) sentences.push_back(failure.sentence());
  return join(sentences, "; ");
}

Error nothing_loaded(const std::filesystem::path& root, const std::vector<Failure>& failures, bool was_named) {
  const auto model = std::find_if(failures.begin(), failures.end(),
                                  [](const Failure& failure) { return failure.verdict.fate == Fate::unsuitable; });
  std::string advice = was_named ? "name another in checkpoint.load_step, or leave it out for the newest whole one"
                                 : "repair one, or move the folder away to start fresh";
  if (model != failures.end()) {
    advice = fmt::format(
        "to begin from its weights, name it in checkpoint.initial_load_path{} of a run that has "
        "another job.dump_folder",
        model->candidate.is_export ? ", with checkpoint.initial_load_in_hf," : "");
  }
  return {ExitCode::storage,
          fmt::format("no checkpoint in {} can be loaded: {}; {}", root.string(), joined(failures), advice)};
}

int64_t bytes_of(const OpenCheckpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& [name, end] : checkpoint.index().file_ends()) bytes += end;
  return bytes;
}

/// Loads one checkpoint on all ranks with `act`, which returns the text for the LOAD line. Sets the folder and line of
/// `outcome` on success. Throws if the checkpoint does not match the run.
Verdict try_folder(RankBarrier& barrier, const std::filesystem::path& folder, const std::function<std::string()>& act,
                   LoadOutcome& outcome) {
  std::string line;
  const Verdict mine = try_checkpoint([&] { line = fmt::format("{} ({})", folder.string(), act()); });
  const Verdict verdict = agreed(barrier, mine);
  if (verdict.fate == Fate::unfit) {
    throw Error(static_cast<ExitCode>(verdict.code),
                fmt::format("{} does not fit this run: {}", folder.string(), verdict.why));
  }
  // I/O errors may be transient. Missing permissions are an error, so that the user can fix them before steps are lost.
  if (verdict.fate == Fate::forbidden) {
    throw Error(ExitCode::storage,
                fmt::format("{} may not be read by this user: {}; give that right, or name another checkpoint in "
                            "checkpoint.load_step, or in checkpoint.initial_load_path where that names this one",
                            folder.string(), verdict.why));
  }
  if (verdict.fate == Fate::loaded) {
    outcome.folder = folder;
    outcome.line = line;
  }
  return verdict;
}

const char* word_for(bool verified) { return verified ? "verified" : "unverified"; }

/// The first file of a checkpoint that rank 0 found and this rank does not see: another disk, or a network file system
/// with a delay. Empty: it sees all files.
std::string unseen_file(Storage& storage, const std::filesystem::path& folder,
                        const std::optional<Manifest>& manifest) {
  std::set<std::string> seen;
  for (const StorageEntry& entry : storage.list(folder)) seen.insert(entry.name);
  if (!manifest && !seen.contains(kManifestFile) && !seen.contains(kIndexFile)) return kIndexFile;
  if (!manifest) return {};
  for (const auto& [name, record] : manifest->files) {
    if (!seen.contains(name)) return name;
  }
  return {};
}

Verdict try_own(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder, bool is_of_the_run,
                const LoadAttempt& attempt, LoadOutcome& outcome) {
  const auto act = [&] {
    std::optional<Manifest> manifest;
    const auto see_all = [&] {
      const std::string unseen = barrier.rank() == 0 ? "" : unseen_file(storage, folder, manifest);
      // Not damage: rank 0 checks that.
      if (!unseen.empty()) throw StorageError("see what rank 0 sees:", folder / unseen, ENOENT);
    };
    see_all();
    OpenCheckpoint checkpoint(storage, folder, barrier.rank() == 0);
    manifest = checkpoint.manifest();
    see_all();
    if (is_of_the_run && manifest) expect_step(folder, manifest->step);
    attempt(checkpoint);
    outcome.verified = checkpoint.verified();
    const std::string& conversion = checkpoint.conversion();
    return fmt::format("{}, {}{}{}", word_for(outcome.verified), human_bytes(static_cast<double>(bytes_of(checkpoint))),
                       conversion.empty() ? "" : ", ", conversion);
  };
  return try_folder(barrier, folder, act, outcome);
}

Verdict try_export(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder,
                   const ExportAttempt& attempt, LoadOutcome& outcome) {
  const auto act = [&] {
    outcome.verified = attempt(storage, folder);
    return fmt::format("Hugging Face, {}", word_for(outcome.verified));
  };
  return try_folder(barrier, folder, act, outcome);
}

/// Why a folder given by the user is not a checkpoint, with a hint; empty if it is one.
std::string what_it_is_instead(Storage& storage, const std::filesystem::path& folder) {
  std::error_code unknown;
  if (std::filesystem::is_regular_file(folder, unknown)) {
    return "it is a file; name the folder of a checkpoint, with its .metadata";
  }
  try {
    const std::vector<StorageEntry> entries = storage.list(folder);
    if (entries.empty() && !std::filesystem::exists(folder, unknown)) return "there is no such folder";
    if (!is_checkpoint(entries) && is_safetensors_folder(entries)) {
      return "it holds a model in Hugging Face's form, which checkpoint.initial_load_in_hf reads";
    }
  } catch (const StorageError&) {  // no further hint without a listing
  }
  return newest_inside(storage, folder);
}

}  // namespace

LoadOutcome load_folder_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder,
                                 const LoadAttempt& attempt) {
  LoadOutcome outcome;
  const Verdict verdict = try_own(storage, barrier, folder, /*is_of_the_run=*/false, attempt, outcome);
  if (verdict.fate != Fate::loaded) {
    const std::string instead = what_it_is_instead(storage, folder);
    throw Error(ExitCode::storage,
                fmt::format("{} cannot be loaded: {}", folder.string(), instead.empty() ? verdict.why : instead));
  }
  outcome.line = "LOAD: " + outcome.line;
  return outcome;
}

LoadOutcome load_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& root,
                          std::optional<int64_t> step, const LoadAttempt& attempt, bool only_reads,
                          const ExportAttempt& attempt_export) {
  std::vector<FoundCheckpoint> candidates = agreed_candidates(storage, barrier, root);
  std::erase_if(candidates, [&](const FoundCheckpoint& one) {
    return (one.is_export && !attempt_export) || (step && one.step != *step);
  });
  if (step && candidates.empty()) {
    throw Error(ExitCode::storage, fmt::format("{} holds no checkpoint of step {}", root.string(), *step));
  }
  LoadOutcome outcome;
  std::vector<Failure> failures;
  for (const FoundCheckpoint& candidate : candidates) {
    const std::filesystem::path folder = root / step_folder(candidate.step);
    const Verdict verdict = candidate.is_export
                                ? try_export(storage, barrier, folder, attempt_export, outcome)
                                : try_own(storage, barrier, folder, /*is_of_the_run=*/true, attempt, outcome);
    if (verdict.fate == Fate::loaded) {
      outcome.step = candidate.step;
      outcome.line = fmt::format("LOAD: step {} from {}", candidate.step, outcome.line);
      break;
    }
    outcome.passed_unread = outcome.passed_unread || verdict.fate == Fate::unreadable;
    failures.push_back({candidate, verdict});
  }
  if (candidates.empty()) {
    outcome.line = fmt::format("LOAD: nothing: {} holds no checkpoint; starting fresh", root.string());
  } else if (!outcome.step) {
    throw nothing_loaded(root, failures, step.has_value());
  }
  if (!failures.empty()) outcome.line += "; " + joined(failures);
  for (const Failure& failure : failures) {
    if (failure.verdict.fate != Fate::damaged || barrier.rank() != 0 || only_reads) continue;
    try {
      set_aside(storage, root, failure.candidate.step);
    } catch (const StorageError& error) {
      outcome.warnings.push_back(error.what());
    }
  }
  return outcome;
}

}  // namespace titan
