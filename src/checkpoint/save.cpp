#include "titan/checkpoint/save.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "problem_of.h"
#include "titan/base/json.h"
#include "titan/base/text.h"

namespace titan {

namespace {

class LoneBarrier : public RankBarrier {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> exchange(std::string message) override { return {std::move(message)}; }
};

/// A rank's data files, each by a thread of its own: who hashes and copies is bound by one core, and a file takes
/// writes of one thread at a time.
std::map<std::string, FileRecord> write_files(Storage& storage, const SaveJob& job, int64_t rank) {
  const std::vector<std::span<const PlannedWrite>> parts = job.plan->files_of(rank);
  const PlannedWrite* const first = job.plan->writes[static_cast<size_t>(rank)].data();
  std::vector<std::optional<FileRecord>> records(parts.size());
  side_by_side(parts.size(), [&](size_t file) {
    const bool has_values = rank == 0 && file == 0;
    const std::span<const SavedValue> values = has_values ? job.values : std::span<const SavedValue>();
    const auto begin = static_cast<size_t>(parts[file].data() - first);
    records[file] = write_data(
        storage, job.place, rank, values, parts[file].size(), [&](size_t i) { return job.written(begin + i); },
        static_cast<int64_t>(file));
  });
  std::map<std::string, FileRecord> files;
  for (size_t file = 0; file < records.size(); ++file) {
    if (records[file]) files[data_file(rank, static_cast<int64_t>(file))] = std::move(*records[file]);
  }
  return files;
}

/// What a rank tells of its data files.
nlohmann::json report_of(const std::string& problem, const std::map<std::string, FileRecord>& files) {
  nlohmann::json report{{"problem", problem}, {"files", nlohmann::json::object()}};
  for (const auto& [name, record] : files) {
    report["files"][name] = {{"bytes", record.bytes}, {"xxh3_128", record.hashes}};
  }
  return report;
}

/// The data files of all ranks; nothing, and `problem` set, when one of them failed.
std::map<std::string, FileRecord> files_of(const std::vector<std::string>& reports, std::string& problem) {
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

/// The stages; what went wrong, empty when it is committed.
std::string run_stages(Storage& storage, RankBarrier& meeting, const SaveJob& job, const CheckpointIndex& index) {
  const bool leads = meeting.rank() == 0;
  std::string problem;
  if (leads) problem = problem_of([&] { begin_save(storage, job.place, total_bytes(index)); });
  problem = meeting.exchange(problem).front();
  if (!problem.empty()) return problem;

  std::map<std::string, FileRecord> mine;
  problem = problem_of([&] { mine = write_files(storage, job, meeting.rank()); });
  const std::vector<std::string> reports = meeting.exchange(json_text(report_of(problem, mine)));
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

void read_words(const std::string& words, size_t rank, const std::function<void(const nlohmann::json& said)>& read) {
  const auto broken = [rank](const std::exception& reason) {
    return Error(ExitCode::peer_failure,
                 fmt::format("rank {} sent words about a checkpoint that cannot be read ({})", rank, reason.what()));
  };
  try {
    read(parse_json(words));
  } catch (const nlohmann::json::exception& reason) {
    throw broken(reason);
  } catch (const std::out_of_range& reason) {
    throw broken(reason);
  } catch (const Error& reason) {
    throw broken(reason);
  }
}

std::unique_ptr<RankBarrier> make_lone_barrier() { return std::make_unique<LoneBarrier>(); }

at::Tensor local_part(const StateTensor& tensor, const PlannedWrite& write) {
  TITAN_CHECK(tensor.local.defined() && tensor.local.sizes() == at::IntArrayRef(write.box.extent) &&
                  tensor.local.scalar_type() == tensor.placed.tensor.type,
              tensor.placed.tensor.name);
  return tensor.local.detach();
}

at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write) {
  return local_part(tensor, write).to(at::kCPU).contiguous();
}

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

SaveOutcome save_together(Storage& storage, RankBarrier& meeting, const SaveJob& job) {
  const auto start = std::chrono::steady_clock::now();
  // Others need no index: the plan alone says what they write.
  const CheckpointIndex index = meeting.rank() == 0 ? index_of(*job.plan, job.tensors, job.values) : CheckpointIndex();
  SaveOutcome outcome{job.place.step, false, {}, job.place.final(), total_bytes(index), 0};
  outcome.problem = run_stages(storage, meeting, job, index);
  outcome.committed = outcome.problem.empty();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

void side_by_side(size_t count, const std::function<void(size_t)>& act) {
  std::vector<std::exception_ptr> failures(count);
  const auto attempt = [&](size_t i) {
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
      threads.emplace_back(attempt, i);
    } catch (const std::system_error&) {
      here.push_back(i);
    }
  }
  for (const size_t i : here) {
    if (i < count) attempt(i);
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace titan
