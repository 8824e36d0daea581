#include "titan/app/rank_session.h"

#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include "titan/app/program.h"
#include "titan/base/control_group.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/cli/facts.h"
#include "titan/config/dump.h"
#include "titan/distributed/own_device.h"
#include "titan/train/device.h"

namespace titan {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Whether LOG_RANK names `rank`.
bool is_shown(int64_t rank) {
  for (const std::string& word : split(variable("LOG_RANK"), ',')) {
    if (trim(word) == "all" || trim(word) == std::to_string(rank)) return true;
  }
  return false;
}

/// Whether the log uses colour: only on a terminal. Not by default under mpirun, whose ranks always have terminals of
/// their own.
bool wants_colour(const JobConfig& config, const Launch& launch) {
  if (config.metrics.disable_color_printing || !variable("NO_COLOR").empty()) return false;
  if (!variable("FORCE_COLOR").empty()) return true;
  return launch.launcher != "mpirun" && ::isatty(STDOUT_FILENO) != 0;
}

/// Not if other ranks write to the same terminal, which would garble the status line; nor in a dry run.
bool shows_status(const Launch& launch) {
  return !launch.fake && launch.launcher != "mpirun" && variable("LOG_RANK").empty() && ::isatty(STDOUT_FILENO) != 0 &&
         variable("TERM") != "dumb";
}

LogTargets log_targets(const JobConfig& config, const Launch& launch, bool output_is_result) {
  LogTargets targets;
  targets.to_errors = output_is_result;
  targets.colour = wants_colour(config, launch);
  targets.quiet = config.metrics.quiet;
  const std::filesystem::path file =
      std::filesystem::path(config.job.dump_folder) / "logs" / fmt::format("rank-{:04}.log", launch.rank);
  if (!output_is_result && !launch.fake) targets.file_instead = file;
  if (launch.rank == 0 || launch.fake) {
    targets.terminal = shows_status(launch);
    return targets;
  }
  targets.console = is_shown(launch.rank);
  targets.file = file;
  targets.file_instead.clear();  // lines that the console cannot take are in `file` anyway
  // A second prefix beside that of titan_train launch would push the message off the line.
  targets.error_prefix = variable("TITAN_LAUNCHER").empty() ? fmt::format("[rank {}] ", launch.rank) : "";
  return targets;
}

/// The part of the config that must be equal on all ranks.
std::string common_config(const Schema& schema, JobConfig config) {
  config.comm.rank.reset();
  config.job.config_file.clear();
  return dump_json(schema, config);
}

}  // namespace

RankSession::RankSession(const Schema& schema, const JobConfig& config, Launch launch,
                         std::shared_ptr<FinalMessage> final_message, bool output_is_result)
    : schema_(schema),
      config_(config),
      launch_(std::move(launch)),
      final_message_(std::move(final_message)),
      log_(log_targets(config, launch_, output_is_result)) {
  if (!output_is_result) ::signal(SIGPIPE, SIG_IGN);  // a closed log pipe must not end the run
  const int64_t remembered = config.comm.trace_buf_size;
  if (remembered > 0 && !launch_.fake) trace_ = std::make_shared<CollectiveTrace>(remembered);
}

const World& RankSession::join() {
  joined_.emplace(rendezvous());
  if (joined_->watcher) {
    joined_->world.trace = trace_;
    joined_->world.hung = [this](const std::string& text) {
      if (final_message_) final_message_->print();
      write_trace();
      // This rank's main thread may hang for ever: the watcher ends the process after a time limit.
      joined_->watcher->fail(static_cast<int>(ExitCode::peer_failure), text);
    };
  }
  return joined_->world;
}

void RankSession::fail() {
  failure_ = std::current_exception();
  if (!joined_ || !joined_->watcher) return;
  const Failure failure = describe_failure(failure_);
  if (failure.code == ExitCode::peer_failure) write_trace();
  if (failure.code != ExitCode::peer_failure) {
    note_failed_rank({launch_.rank, host_name(), static_cast<int>(failure.code), failure.text});
  }
  rank_zero_reports_ = joined_->watcher->fail(static_cast<int>(failure.code), failure.text);
}

int RankSession::end(ExitCode code) {
  if (!failure_ && joined_->watcher) leave(*joined_->watcher);
  joined_.reset();
  return failure_ ? exit_code_of_failure() : static_cast<int>(code);
}

int RankSession::exit_code_of_failure() {
  if (launch_.rank == 0 || launch_.fake) std::rethrow_exception(failure_);
  try {
    std::rethrow_exception(failure_);
  } catch (const RefusedByRankZero& refusal) {
    log_.info(refusal.what());
    return static_cast<int>(refusal.code());
  } catch (...) {
    const Failure failure = describe_failure(failure_);
    rank_zero_reports_ ? log_.info(failure.text) : log_.error(failure.text);
    return static_cast<int>(failure.code);
  }
}

RankFacts RankSession::own_facts() const {
  RankFacts facts;
  facts.rank = launch_.rank;
  facts.size = launch_.size;
  facts.host = host_name();
  facts.machine = machine_id();
  facts.process = ::getpid();
  facts.host_cores = machine_cores();
  facts.threads = config_.training.threads;
  facts.program = fmt::format("{:016x}", name_key(read_file("/proc/self/exe")));
  for (const char* library : {"libtitan.so", "libtitan_cuda.so"}) {
    const std::filesystem::path path = beside_program(library);
    if (std::filesystem::exists(path)) facts.program += fmt::format("-{:016x}", name_key(read_file(path)));
  }
  facts.config = common_config(schema_, config_);
  try {
    std::vector<std::string> gpus = visible_gpus(config_.training.device);
    if (gpus.size() > 1 && !launch_.local_rank) {
      // This rank's GPU depends on the other ranks of this host.
      if (config_.debug.share_gpu) std::fill(gpus.begin(), gpus.end(), "");
      facts.gpus = std::move(gpus);
    } else {
      const DeviceInfo device = choose_device(config_.training.device, launch_.local_rank.value_or(0));
      facts.device = device.device.str();
      if (!config_.debug.share_gpu) facts.device_uuid = device.uuid;
      move_near(device);
    }
  } catch (const Error& error) {
    facts.problem = error.what();
    facts.problem_code = static_cast<int>(error.code());
  }
  facts.cores = allowed_cores();
  if (const std::optional<GroupLimit> quota = ControlGroups().processors()) {
    facts.quota = quota->limit;
    struct stat group {};
    if (::stat(quota->file.c_str(), &group) == 0) facts.quota_group = fmt::format("{}:{}", group.st_dev, group.st_ino);
  }
  return facts;
}

void RankSession::move_near(const DeviceInfo& device) const {
  if (device.pci_id.empty()) return;
  const std::vector<int> cores = better_cores(allowed_cores(), cores_near("/sys", device.pci_id));
  if (!cores.empty() && bind_to(cores)) {
    log_.info("{} ({}) is near cores {}: this rank runs there", device.device.str(), device.pci_id, core_list(cores));
  }
}

Rendezvous RankSession::rendezvous() {
  if (launch_.fake) {
    log_.info("Dry run as rank {} of {}: no communication, nothing is recorded", launch_.rank, launch_.size);
  }
  if (launch_.rendezvous.kind == RendezvousEndpoint::Kind::nowhere)
    return join_ranks(launch_, {}, {}, {}, final_message_);
  log_.info("Rank {} of {}, started by {}; rendezvous at {}", launch_.rank, launch_.size, launch_.launcher,
            launch_.rendezvous.host);
  auto peer_failed = [this](const std::string& text, bool aloud) {
    write_trace();
    if (const std::optional<NamedRank> named = rank_named_in(text))
      note_failed_rank({named->rank, named->host, 0, text});
    log_.silence_other_threads();
    log_.status({});
    if (!aloud) return log_.info(text);
    if (launch_.rank != 0) return log_.error(text);
    std::cout.flush();
    std::cerr << "titan_train: " + printable_lines(text) + "\n" << std::flush;
  };
  RankFacts facts = own_facts();
  if (!facts.gpus.empty() || facts.device.starts_with("cuda")) prepare_nccl();
  Rendezvous joined = join_ranks(launch_, std::move(facts), std::chrono::seconds(config_.comm.init_timeout_seconds),
                                 std::move(peer_failed), final_message_);
  if (!launch_.local_rank) {
    move_near(choose_device(config_.training.device, joined.world.local_rank));
    joined.world.cores = std::min(joined.world.cores, std::ssize(allowed_cores()));
  }
  for (const std::string& line : joined.table) log_.info(line);
  for (const std::string& warning : joined.warnings) log_.warning(warning);
  return joined;
}

void RankSession::leave(AbortWatcher& watcher) const {
  const std::vector<int64_t> unfinished = watcher.leave(std::chrono::seconds(config_.comm.train_timeout_seconds));
  if (unfinished.empty()) return;
  log_.warning("{} {} had not ended {} s after this one", unfinished.size() == 1 ? "rank" : "ranks",
               number_list(unfinished), config_.comm.train_timeout_seconds);
}

std::string RankSession::trace_prefix() const {
  return std::filesystem::path(config_.job.dump_folder) / config_.comm.save_traces_folder /
         config_.comm.save_traces_file_prefix;
}

void RankSession::prepare_nccl() const {
  const std::string prefix = trace_prefix();
  if (trace_) {
    std::error_code none;  // not a reason to stop a run: NCCL warns itself when it cannot write there
    std::filesystem::create_directories(std::filesystem::path(prefix).parent_path(), none);
  }
  const bool one_gpu_visible = visible_gpus(config_.training.device).size() == 1;
  set_where_unset(nccl_environment(config_.comm.trace_buf_size, prefix, one_gpu_visible));
}

void RankSession::note_failures_in(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  failures_folder_ = folder;
}

void RankSession::note_failed_rank(FailedRank failed) {
  const std::lock_guard lock(mutex_);
  if (failures_folder_.empty()) return;
  failed.time = wall_time();
  note_failure(failures_folder_, failed);
}

void RankSession::write_trace() {
  if (!trace_ || trace_->is_empty() || trace_written_.exchange(true)) return;
  const std::filesystem::path file = fmt::format("{}{}.json", trace_prefix(), launch_.rank);
  try {
    std::filesystem::create_directories(file.parent_path());
    write_own_file_atomically(file, trace_->json());
    log_.info("The last collectives of this rank are in {}", file.string());
  } catch (const std::exception& error) {
    log_.warning("{}: the last collectives of this rank are not kept", error.what());
  }
}

void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MXFAST, 0);  // else every large free first consolidates all small chunks
}

Launch detect_launch(const JobConfig& config) { return detect_launch(config.comm, process_context()); }

}  // namespace titan
