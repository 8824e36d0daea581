// The collective half of loading: which checkpoint all ranks take, and what they say of those that they pass over.
#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/distributed/rank_check.h"

namespace titan {
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
  } catch (const Error& error) {
    // The model, the format or the corpus is another one, so an older checkpoint would not fit either.
    return failed(Fate::unfit, error);
  }
}

std::string words_of(const Verdict& verdict) {
  return json_text(
      nlohmann::json{{"fate", static_cast<int>(verdict.fate)}, {"why", verdict.why}, {"code", verdict.code}});
}

Verdict verdict_in(const std::string& words, size_t rank) {
  Verdict verdict;
  read_words(words, rank, [&](const nlohmann::json& message) {
    const int fate = message.at("fate").get<int>();
    verdict = {static_cast<Fate>(fate), message.at("why").get<std::string>(), message.at("code").get<int>()};
    const bool is_fate = fate >= 0 && fate <= static_cast<int>(Fate::unfit);
    if (!is_fate || (verdict.fate == Fate::unfit && !is_failure_code(verdict.code))) {
      throw std::out_of_range("no verdict");
    }
  });
  return verdict;
}

/// The worst result of all ranks, with the rank's number if there are several.
Verdict agreed(RankBarrier& barrier, const Verdict& mine) {
  const std::string answer = barrier.decide(words_of(mine), [](const std::vector<std::string>& all) {
    Verdict worst;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      Verdict one = verdict_in(all[rank], rank);
      if (one.fate <= worst.fate) continue;
      if (all.size() > 1) one.why += fmt::format(" (rank {})", rank);
      worst = one;
    }
    return words_of(worst);
  });
  return verdict_in(answer, 0);
}

struct Candidates {
  std::vector<FoundCheckpoint> allowed;  // newest first
  std::string passed_over;               // a sentence about those that the limit forbids; empty: there are none
};

std::string passed_over(const std::vector<int64_t>& steps, const LoadLimit& limit) {
  if (steps.empty()) return {};
  return fmt::format("step{} {} {} passed over: {}", steps.size() == 1 ? "" : "s", number_list(steps),
                     steps.size() == 1 ? "is" : "are", limit.why);
}

/// Rank 0 lists the checkpoints, so that all ranks try the same ones: all, or `step` alone.
Candidates agreed_candidates(Storage& storage, RankBarrier& barrier, const std::filesystem::path& root,
                             std::optional<int64_t> step, const LoadLimit& limit) {
  nlohmann::json message{{"problem", ""}, {"steps", nlohmann::json::array()}, {"passed_over", ""}};
  if (barrier.rank() == 0) {
    std::vector<int64_t> passed;
    try {
      for (const FoundCheckpoint& found : find_checkpoints(storage, root)) {
        if (step && found.step != *step) continue;
        if (!step && limit.last && found.step > *limit.last) {
          passed.push_back(found.step);
        } else {
          message["steps"].push_back({found.step, found.is_export});
        }
      }
      message["passed_over"] = passed_over({passed.rbegin(), passed.rend()}, limit);
    } catch (const StorageError& error) {
      message["problem"] = error.what();
    }
  }
  std::string problem;
  Candidates candidates;
  std::vector<std::pair<int64_t, bool>> steps;
  read_words(barrier.tell(json_text(message)), 0, [&](const nlohmann::json& heard) {
    problem = heard.at("problem").get<std::string>();
    steps = heard.at("steps").get<std::vector<std::pair<int64_t, bool>>>();
    candidates.passed_over = heard.at("passed_over").get<std::string>();
  });
  if (!problem.empty()) {
    throw Error(ExitCode::storage,
                problem + "; checkpoint.folder (under job.dump_folder) must be a folder that this user can read");
  }
  for (const auto& [found, is_export] : steps) {
    candidates.allowed.push_back({.step = found, .is_export = is_export});
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

/// What to give as checkpoint.load_step instead of a step that is not there.
std::string steps_to_name(Storage& storage, const std::filesystem::path& root, bool reads_exports) {
  constexpr size_t kShown = 8;
  std::vector<int64_t> steps;
  try {
    for (const FoundCheckpoint& one : find_checkpoints(storage, root)) {
      if (reads_exports || !one.is_export) steps.push_back(one.step);
    }
  } catch (const StorageError&) {  // no further hint without a listing
  }
  if (steps.empty()) return "leave checkpoint.load_step out to begin a run";
  std::vector<std::string> shown;
  for (const int64_t step : steps) {
    if (shown.size() < kShown) shown.push_back(fmt::format("{}", step));
  }
  return fmt::format("name one that is there in checkpoint.load_step ({}{}), or leave it out for the newest",
                     join(shown, ", "), steps.size() > kShown ? ", …" : "");
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

/// The first file of a checkpoint that rank 0 found and this rank does not see, because its disk is another one or its
/// network file system is late; empty if it sees all files.
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
      // This is an error of the storage, not damage: rank 0 checks for damage.
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
    if (entries.empty() && !std::filesystem::exists(folder, unknown)) {
      const bool is_address = folder.string().find(":/") != std::string::npos;
      return fmt::format("there is no such folder; name one {} in checkpoint.initial_load_path",
                         is_address ? "of this machine (nothing is downloaded)" : "that holds a checkpoint");
    }
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
                          const ExportAttempt& attempt_export, const LoadLimit& limit) {
  const Candidates found = agreed_candidates(storage, barrier, root, step, limit);
  std::vector<FoundCheckpoint> candidates = found.allowed;
  if (!attempt_export) std::erase_if(candidates, [](const FoundCheckpoint& one) { return one.is_export; });
  if (step && candidates.empty()) {
    throw Error(ExitCode::storage, fmt::format("{} holds no checkpoint of step {}; {}", root.string(), *step,
                                               steps_to_name(storage, root, static_cast<bool>(attempt_export))));
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
    outcome.line = fmt::format("LOAD: nothing: {} holds no {}checkpoint; starting fresh", root.string(),
                               found.passed_over.empty() ? "" : "other ");
  } else if (!outcome.step) {
    throw nothing_loaded(root, failures, step.has_value());
  }
  if (!failures.empty()) outcome.line += "; " + joined(failures);
  if (!found.passed_over.empty()) outcome.line += "; " + found.passed_over;
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
