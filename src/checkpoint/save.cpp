#include "titan/checkpoint/save.h"

#include <chrono>

#include "titan/base/text.h"

namespace titan {
namespace {

class LoneMeeting : public RankMeeting {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> exchange(std::string message) override { return {std::move(message)}; }
};

/// What the storage did not do; empty when `act` succeeded.
template <class Act>
std::string problem_of(const Act& act) {
  try {
    act();
    return {};
  } catch (const StorageError& error) {
    return error.what();
  } catch (const DamageError& error) {
    return error.what();
  }
}

/// What a rank tells of its data file.
nlohmann::json report_of(const std::string& problem, const std::optional<FileRecord>& record) {
  nlohmann::json report{{"problem", problem}};
  if (record) report["file"] = {{"bytes", record->bytes}, {"xxh3_128", record->hashes}};
  return report;
}

/// The data files of all ranks; nothing, and `problem` set, when one of them failed.
std::map<std::string, FileRecord> files_of(const std::vector<std::string>& reports, std::string& problem) {
  std::map<std::string, FileRecord> files;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto report = nlohmann::json::parse(reports[rank]);
    const auto failed = report.at("problem").get<std::string>();
    if (!failed.empty() && problem.empty()) problem = fmt::format("rank {}: {}", rank, failed);
    if (!report.contains("file")) continue;
    const nlohmann::json& file = report["file"];
    files[data_file(static_cast<int64_t>(rank))] = {file.at("bytes").get<int64_t>(),
                                                    file.at("xxh3_128").get<std::vector<std::string>>()};
  }
  return files;
}

int64_t total_bytes(const CheckpointIndex& index) {
  int64_t bytes = 0;
  for (const auto& [name, end] : index.file_ends()) bytes += end;
  return bytes;
}

/// The stages; what went wrong, empty when it is committed.
std::string run_stages(Storage& storage, RankMeeting& meeting, const SaveJob& job, const CheckpointIndex& index) {
  const bool leads = meeting.rank() == 0;
  std::string problem;
  if (leads) problem = problem_of([&] { begin_save(storage, job.place, total_bytes(index)); });
  problem = meeting.exchange(problem).front();
  if (!problem.empty()) return problem;

  std::optional<FileRecord> record;
  const auto rank = static_cast<size_t>(meeting.rank());
  problem = problem_of([&] {
    const std::span<const SavedValue> values = leads ? job.values : std::span<const SavedValue>();
    record = write_data(storage, job.place, meeting.rank(), values, job.plan->writes[rank].size(), job.written);
  });
  const std::vector<std::string> reports = meeting.exchange(report_of(problem, record).dump());
  problem.clear();
  std::map<std::string, FileRecord> files = files_of(reports, problem);
  if (!problem.empty()) {
    if (leads) abandon_save(storage, job.place);
    return problem;
  }

  if (leads) {
    problem = problem_of([&] { commit_save(storage, job.place, index, std::move(files), job.facts); });
    if (!problem.empty()) abandon_save(storage, job.place);
  }
  return meeting.exchange(problem).front();
}

}  // namespace

std::unique_ptr<RankMeeting> make_lone_meeting() { return std::make_unique<LoneMeeting>(); }

std::vector<PlacedTensor> CheckpointState::placed() const {
  std::vector<PlacedTensor> placed;
  for (const StateTensor& tensor : tensors) placed.push_back(tensor.placed);
  return placed;
}

std::string SaveOutcome::sentence() const {
  if (committed) {
    return fmt::format("checkpoint {} committed: {}, {} in {:.2f} s", step, folder.string(),
                       human_bytes(static_cast<double>(bytes)), seconds);
  }
  return fmt::format("checkpoint {} was not saved: {}", step, problem);
}

SaveOutcome save_together(Storage& storage, RankMeeting& meeting, const SaveJob& job) {
  const auto start = std::chrono::steady_clock::now();
  // Others need no index: the plan alone says what they write.
  const CheckpointIndex index = meeting.rank() == 0 ? index_of(*job.plan, job.tensors, job.values) : CheckpointIndex();
  SaveOutcome outcome{job.place.step, false, {}, job.place.final(), total_bytes(index), 0};
  outcome.problem = run_stages(storage, meeting, job, index);
  outcome.committed = outcome.problem.empty();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace titan
