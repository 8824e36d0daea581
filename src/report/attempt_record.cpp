#include "titan/report/attempt_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/process.h"

namespace titan {
namespace {

constexpr const char* kProgressFile = "progress.json";
constexpr const char* kFailureFile = "failure.json";
/// A line of progress.json, padded with spaces: a shorter one must not leave the end of a longer one behind.
constexpr size_t kProgressLine = 192;
/// No file of an attempt is larger: a message has some thousand characters, and a thousand named ranks some ten.
constexpr size_t kLargestRecord = size_t{1} << 20;
/// attempts.jsonl has a line for each failure.
constexpr size_t kLargestList = size_t{1} << 26;

/// What `parse` makes of a small file of the folder, an object. Nothing if it is missing or was not written by this
/// program. That is neither an error nor a warning: these files tell people and the next start where a run is and why
/// it ended. Both can do without, and a damaged file must not stop a run that could train.
template <class Parse>
auto read_record(const std::filesystem::path& path, const Parse& parse) -> decltype(parse(nlohmann::json())) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return std::nullopt;
  try {
    return parse(parse_json(read_file(path, ExitCode::storage, kLargestRecord)));
  } catch (const Error&) {  // it cannot be read
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

nlohmann::ordered_json to_json(const AttemptProgress& progress) {
  return {{"began_at", progress.began_at},
          {"began", progress.began},
          {"step", progress.step},
          {"saved_step", progress.saved_step},
          {"saved", progress.saved}};
}

int open_own(const std::filesystem::path& path, int flags) {
  if (!own_file_obstacle(path).empty()) return -1;
  return ::open(path.c_str(), flags | O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
}

}  // namespace

ProgressFile::ProgressFile(const std::filesystem::path& folder, int64_t began_at)
    : descriptor_(open_own(folder / kProgressFile, O_TRUNC)) {
  progress_.began_at = progress_.step = began_at;
  progress_.began = wall_time();
  write();
}

ProgressFile::~ProgressFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ProgressFile::add_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  progress_.step = step;
  write();
}

void ProgressFile::begin_save(int64_t step) {
  const std::lock_guard lock(mutex_);
  begun_saves_[step] = wall_time();
}

void ProgressFile::add_save(int64_t step) {
  const std::lock_guard lock(mutex_);
  const auto begun = begun_saves_.find(step);
  progress_.saved_step = step;
  progress_.saved = begun == begun_saves_.end() ? wall_time() : begun->second;
  begun_saves_.erase(begun_saves_.begin(), begun_saves_.upper_bound(step));
  write();
}

void ProgressFile::write() {
  if (descriptor_ < 0) return;
  std::string line = json_text(to_json(progress_));
  line.resize(std::max(line.size(), kProgressLine), ' ');
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, line.data(), line.size(), 0);
}

std::optional<AttemptProgress> read_progress(const std::filesystem::path& folder) {
  return read_record(folder / kProgressFile, [](const nlohmann::json& found) -> std::optional<AttemptProgress> {
    AttemptProgress progress;
    found.at("began_at").get_to(progress.began_at);
    found.at("began").get_to(progress.began);
    found.at("step").get_to(progress.step);
    found.at("saved_step").get_to(progress.saved_step);
    found.at("saved").get_to(progress.saved);
    return progress;
  });
}

void note_failure(const std::filesystem::path& folder, const FailedRank& failed) {
  const int descriptor = open_own(folder / kFailureFile, O_EXCL);
  if (descriptor < 0) return;
  const nlohmann::ordered_json values{{"rank", failed.rank},
                                      {"host", failed.host},
                                      {"exit_code", failed.exit_code},
                                      {"text", failed.text},
                                      {"time", failed.time}};
  const std::string line = json_text(values) + "\n";
  [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
  ::close(descriptor);
}

std::optional<FailedRank> read_failure(const std::filesystem::path& folder) {
  return read_record(folder / kFailureFile, [](const nlohmann::json& found) -> std::optional<FailedRank> {
    return FailedRank{found.at("rank").get<int64_t>(), found.at("host").get<std::string>(),
                      found.at("exit_code").get<int>(), found.at("text").get<std::string>(),
                      found.at("time").get<double>()};
  });
}

void forget_attempt(const std::filesystem::path& folder) {
  std::error_code missing;
  for (const char* name : {kProgressFile, kFailureFile}) {
    const std::filesystem::path file = folder / name;
    if (std::filesystem::is_regular_file(std::filesystem::symlink_status(file, missing))) {
      std::filesystem::remove(file, missing);
    }
  }
}

std::string record_disagreement(const std::filesystem::path& folder, const RecordedDisagreement& found) {
  const nlohmann::ordered_json content{{"step", found.step},   {"last_agreeing_step", found.last_agreeing_step},
                                       {"ranks", found.ranks}, {"hosts", found.hosts},
                                       {"what", found.what},   {"checkpoint_folder", found.checkpoint_folder},
                                       {"time", found.time}};
  try {
    write_file_atomically(folder / kDisagreementFile, json_text(content) + "\n");
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

namespace {

/// Throws nlohmann's exceptions, and std::string for values that no run writes.
RecordedDisagreement disagreement_from_json(const nlohmann::json& found) {
  const auto step_at = [&](const char* key) {
    if (!found.at(key).is_number_integer()) throw fmt::format("{} is no whole number", key);
    return found.at(key).get<int64_t>();
  };
  RecordedDisagreement disagreement;
  disagreement.step = step_at("step");
  disagreement.last_agreeing_step = step_at("last_agreeing_step");
  found.at("ranks").get_to(disagreement.ranks);
  found.at("hosts").get_to(disagreement.hosts);
  found.at("what").get_to(disagreement.what);
  found.at("checkpoint_folder").get_to(disagreement.checkpoint_folder);
  found.at("time").get_to(disagreement.time);
  if (disagreement.hosts.size() != disagreement.ranks.size()) throw std::string("it has not one host for each rank");
  if (disagreement.last_agreeing_step < 0 || disagreement.last_agreeing_step > disagreement.step) {
    throw fmt::format("last_agreeing_step = {} is not from 0 to step = {}", disagreement.last_agreeing_step,
                      disagreement.step);
  }
  return disagreement;
}

bool is_same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code unknown;
  return (a / "").lexically_normal() == (b / "").lexically_normal() || std::filesystem::equivalent(a, b, unknown);
}

}  // namespace

std::optional<RecordedDisagreement> read_disagreement(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kDisagreementFile;
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, unknown);
  if (status.type() == std::filesystem::file_type::not_found) return std::nullopt;
  std::string reason;
  try {
    if (!std::filesystem::is_regular_file(path, unknown)) throw std::string("it is no file");
    return disagreement_from_json(parse_json(read_file(path, ExitCode::storage, kLargestRecord)));
  } catch (const std::string& problem) {
    reason = problem;
  } catch (const Error& error) {
    reason = error.what();
  } catch (const nlohmann::json::exception& error) {
    reason = error.what();
  }
  throw Error(ExitCode::storage,
              fmt::format("{} says up to which step checkpoints can be trusted, and cannot be read: {}; correct it, or "
                          "remove it to trust them all",
                          path.string(), reason));
}

std::optional<int64_t> last_agreeing_step(const std::filesystem::path& folder,
                                          const std::filesystem::path& checkpoints) {
  const std::optional<RecordedDisagreement> found = read_disagreement(folder);
  if (!found || found->checkpoint_folder.empty() || !is_same_folder(folder / found->checkpoint_folder, checkpoints)) {
    return std::nullopt;
  }
  return found->last_agreeing_step;
}

std::string settle_disagreement(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kDisagreementFile;
  std::error_code problem;
  if (!std::filesystem::is_regular_file(file, problem)) return {};
  std::filesystem::path free;
  for (int64_t number = 1; free.empty() || std::filesystem::exists(free, problem); ++number) {
    free = folder / fmt::format("disagreement-{}.json", number);
  }
  std::filesystem::rename(file, free, problem);
  return problem ? fmt::format("cannot rename {} to {}: {}", file.string(), free.string(), problem.message()) : "";
}

nlohmann::ordered_json to_json(const EndedAttempt& attempt) {
  nlohmann::ordered_json line{{"supervisor", attempt.supervisor},
                              {"failed", attempt.failed},
                              {"ended", attempt.ended},
                              {"exit_code", attempt.exit_code},
                              {"why", attempt.why},
                              {"began_at", attempt.began_at},
                              {"reached", attempt.reached},
                              {"saved_step", attempt.saved_step},
                              {"lost_seconds", attempt.lost_seconds},
                              {"was_asked", attempt.was_asked},
                              {"disk_is_full", attempt.disk_is_full},
                              {"restarts", attempt.restarts},
                              {"sentence", attempt.sentence}};
  if (attempt.rank) line["rank"] = *attempt.rank;
  if (!attempt.host.empty()) line["host"] = attempt.host;
  if (attempt.committed) line["committed"] = *attempt.committed;
  if (attempt.held > 0) line["held"] = attempt.held;
  return line;
}

std::optional<EndedAttempt> attempt_from_line(std::string_view line) {
  const nlohmann::json found = parse_json(line, /*allow_exceptions=*/false);
  if (!found.is_object()) return std::nullopt;
  try {
    EndedAttempt attempt;
    found.at("supervisor").get_to(attempt.supervisor);
    found.at("failed").get_to(attempt.failed);
    found.at("ended").get_to(attempt.ended);
    found.at("exit_code").get_to(attempt.exit_code);
    found.at("why").get_to(attempt.why);
    found.at("began_at").get_to(attempt.began_at);
    found.at("reached").get_to(attempt.reached);
    found.at("saved_step").get_to(attempt.saved_step);
    found.at("lost_seconds").get_to(attempt.lost_seconds);
    found.at("was_asked").get_to(attempt.was_asked);
    found.at("disk_is_full").get_to(attempt.disk_is_full);
    found.at("restarts").get_to(attempt.restarts);
    found.at("sentence").get_to(attempt.sentence);
    if (found.contains("rank")) attempt.rank = found["rank"].get<int64_t>();
    if (found.contains("committed")) attempt.committed = found["committed"].get<int64_t>();
    attempt.host = found.value("host", "");
    attempt.held = found.value("held", int64_t{0});
    return attempt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::vector<std::optional<EndedAttempt>> read_attempt_lines(const std::filesystem::path& folder) {
  std::vector<std::optional<EndedAttempt>> attempts;
  const std::filesystem::path path = folder / kAttemptsFile;
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return attempts;  // opening a pipe would block for ever
  if (std::filesystem::file_size(path, unknown) > kLargestList) return {std::nullopt};
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) attempts.push_back(attempt_from_line(line));
  return attempts;
}

std::vector<EndedAttempt> read_attempts(const std::filesystem::path& folder) {
  std::vector<EndedAttempt> attempts;
  for (std::optional<EndedAttempt>& attempt : read_attempt_lines(folder)) {
    if (attempt) attempts.push_back(*std::move(attempt));
  }
  return attempts;
}

std::string append_attempt(const std::filesystem::path& folder, const EndedAttempt& attempt) {
  AppendFile file(folder / kAttemptsFile);
  return file.append_line(json_text(to_json(attempt))) ? "" : file.last_error();
}

std::string json_line(const RestartReport& report) {
  const EndedAttempt& failed = report.failed;
  const RestartTimes& times = report.times;
  nlohmann::ordered_json line{{"step", report.step},
                              {"event", "restart"},
                              {"why", failed.why},
                              {"exit_code", failed.exit_code},
                              {"restarts", report.restarts},
                              {"from_step", report.step - 1},
                              {"lost_steps", report.lost_steps()},
                              {"lost_seconds", failed.lost_seconds},
                              {"down_seconds", times.total()},
                              {"parts",
                               {{"ending", times.ending},
                                {"start", times.start},
                                {"rendezvous", times.rendezvous},
                                {"build", times.build},
                                {"load", times.load},
                                {"first_step", times.first_step}}}};
  if (failed.rank) line["rank"] = *failed.rank;
  if (!failed.host.empty()) line["host"] = failed.host;
  return json_text(line);
}

std::string restart_words(const RestartReport& report) {
  const RestartTimes& times = report.times;
  return fmt::format(
      "restart: step {} was done {:.2f} s after the failure: ending {:.2f}, start {:.2f}, rendezvous {:.2f}, build "
      "{:.2f}, load {:.2f}, first step {:.2f}",
      report.step, times.total(), times.ending, times.start, times.rendezvous, times.build, times.load,
      times.first_step);
}

}  // namespace titan
