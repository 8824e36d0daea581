#include "titan/checkpoint/load.h"

#include <algorithm>

#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"

namespace titan {
namespace {

/// How one rank fared with one checkpoint, worst last.
enum class Fate { loaded, unsuitable, unreadable, damaged, unfit };

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
    return failed(Fate::unreadable, error);
  } catch (const InvariantError&) {
    throw;
  } catch (const Error& error) {  // another model, a newer format, another corpus: an older one would not fit either
    return failed(Fate::unfit, error);
  }
}

/// The worst verdict of all ranks, with the rank's number where there are several.
Verdict agreed(RankMeeting& meeting, const Verdict& mine) {
  const nlohmann::json message{{"fate", static_cast<int>(mine.fate)}, {"why", mine.why}, {"code", mine.code}};
  const std::vector<std::string> all = meeting.exchange(message.dump());
  Verdict worst;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto told = nlohmann::json::parse(all[rank]);
    const auto fate = static_cast<Fate>(told.at("fate").get<int>());
    if (fate <= worst.fate) continue;
    const auto why = told.at("why").get<std::string>();
    worst = {fate, all.size() == 1 ? why : fmt::format("{} (rank {})", why, rank), told.at("code").get<int>()};
  }
  return worst;
}

/// Rank 0 looks, so that all try the same ones.
std::vector<int64_t> agreed_steps(Storage& storage, RankMeeting& meeting, const std::filesystem::path& root) {
  nlohmann::json told{{"problem", ""}, {"steps", nlohmann::json::array()}};
  if (meeting.rank() == 0) {
    try {
      for (const FoundCheckpoint& found : find_checkpoints(storage, root)) told["steps"].push_back(found.step);
    } catch (const StorageError& error) {
      told["problem"] = error.what();
    }
  }
  const auto heard = nlohmann::json::parse(meeting.exchange(told.dump()).front());
  const auto problem = heard.at("problem").get<std::string>();
  if (!problem.empty()) throw Error(ExitCode::storage, problem);
  return heard.at("steps").get<std::vector<int64_t>>();
}

struct Failure {
  int64_t step;
  Verdict verdict;

  std::string sentence() const {
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
  const bool has_model = std::any_of(failures.begin(), failures.end(),
                                     [](const Failure& failure) { return failure.verdict.fate == Fate::unsuitable; });
  return {ExitCode::storage,
          fmt::format("no checkpoint in {} can be loaded: {}; {}", root.string(), joined(failures),
                      has_model   ? "to begin from its weights, name it in checkpoint.initial_load_path of a run that "
                                    "has another job.dump_folder"
                      : was_named ? "name another in checkpoint.load_step, or leave it out for the newest whole one"
                                  : "repair one, or move the folder away to start fresh")};
}

int64_t bytes_of(const OpenCheckpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& [name, end] : checkpoint.index().file_ends()) bytes += end;
  return bytes;
}

/// One checkpoint on all ranks. Loaded: `outcome` has its folder, and its line says where from. Throws when it does not
/// fit the run.
Verdict try_folder(Storage& storage, RankMeeting& meeting, const std::filesystem::path& folder,
                   const LoadAttempt& attempt, LoadOutcome& outcome) {
  std::string line;
  const Verdict mine = try_checkpoint([&] {
    OpenCheckpoint checkpoint(storage, folder, meeting.rank() == 0);
    attempt(checkpoint);
    outcome.verified = checkpoint.verified();
    line = fmt::format("{} ({}, {})", folder.string(), outcome.verified ? "verified" : "unverified",
                       human_bytes(static_cast<double>(bytes_of(checkpoint))));
  });
  const Verdict verdict = agreed(meeting, mine);
  if (verdict.fate == Fate::unfit) {
    throw Error(static_cast<ExitCode>(verdict.code),
                fmt::format("{} does not fit this run: {}", folder.string(), verdict.why));
  }
  if (verdict.fate == Fate::loaded) {
    outcome.folder = folder;
    outcome.line = line;
  }
  return verdict;
}

}  // namespace

LoadOutcome load_folder_together(Storage& storage, RankMeeting& meeting, const std::filesystem::path& folder,
                                 const LoadAttempt& attempt) {
  LoadOutcome outcome;
  const Verdict verdict = try_folder(storage, meeting, folder, attempt, outcome);
  if (verdict.fate != Fate::loaded) {
    const std::string inside = newest_inside(storage, folder);
    throw Error(ExitCode::storage,
                fmt::format("{} cannot be loaded: {}", folder.string(), inside.empty() ? verdict.why : inside));
  }
  outcome.line = "LOAD: " + outcome.line;
  return outcome;
}

LoadOutcome load_together(Storage& storage, RankMeeting& meeting, const std::filesystem::path& root,
                          std::optional<int64_t> step, const LoadAttempt& attempt, bool only_reads) {
  std::vector<int64_t> steps = agreed_steps(storage, meeting, root);
  if (step) {
    if (std::find(steps.begin(), steps.end(), *step) == steps.end()) {
      throw Error(ExitCode::storage, fmt::format("{} holds no checkpoint of step {}", root.string(), *step));
    }
    steps = {*step};
  }
  LoadOutcome outcome;
  std::vector<Failure> failures;
  for (const int64_t candidate : steps) {
    const Verdict verdict = try_folder(storage, meeting, root / step_folder(candidate), attempt, outcome);
    if (verdict.fate == Fate::loaded) {
      outcome.step = candidate;
      outcome.line = fmt::format("LOAD: step {} from {}", candidate, outcome.line);
      break;
    }
    failures.push_back({candidate, verdict});
  }
  if (steps.empty()) {
    outcome.line = fmt::format("LOAD: nothing: {} holds no checkpoint; starting fresh", root.string());
  } else if (!outcome.step) {
    throw nothing_loaded(root, failures, step.has_value());
  }
  if (!failures.empty()) outcome.line += "; " + joined(failures);
  for (const Failure& failure : failures) {
    if (failure.verdict.fate != Fate::damaged || meeting.rank() != 0 || only_reads) continue;
    try {
      set_aside(storage, root, failure.step);
    } catch (const StorageError& error) {
      outcome.warnings.push_back(error.what());
    }
  }
  return outcome;
}

}  // namespace titan
