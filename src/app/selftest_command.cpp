// titan_train selftest and netcheck: does this cluster compute, and does it communicate, as it should?
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/app/rank_session.h"
#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/stop_signals.h"
#include "titan/cli/options.h"
#include "titan/cli/program.h"
#include "titan/config/load.h"
#include "titan/estimate/simulate.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/tools/netcheck.h"
#include "titan/tools/selftest.h"
#include "titan/train/device.h"
#include "titan/train/run.h"

namespace titan {
namespace {

constexpr int kFirstWithFloat8 = 89;  // compute capability

/// A folder of this process for the time of a test.
class OwnFolder {
 public:
  OwnFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("titan-selftest-{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~OwnFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class Selftest {
 public:
  Selftest(const Schema& schema, std::vector<std::string> words, const World& world, const Log& log)
      : schema_(schema), words_(std::move(words)), world_(world), log_(log) {}

  /// Rank 0 reports, and returns silent_corruption if a row failed. A signal ends it on all ranks without a report.
  ExitCode run(const DeviceInfo& device, bool json) {
    const std::filesystem::path ids = folder_.path() / "ids.bin";
    write_selftest_corpus(ids, world_.size);
    const std::vector<std::string> common = selftest_words(world_.size, ids);
    words_.insert(words_.end(), common.begin(), common.end());
    const std::filesystem::path reference = folder_.path() / "reference";
    // If a signal ends it, the vote at the start of the first row ends all ranks.
    if (world_.rank == 0) train_row({"--training.device=cpu", "--training.local_batch_size=2"}, World(), reference);
    std::vector<SelftestResult> results;
    const bool has_float8 = device.device.is_cpu() || device_facts(device).capability >= kFirstWithFloat8;
    for (const SelftestRow& row : selftest_rows(world_.size, has_float8)) {
      const std::string number = std::to_string(++rows_);
      World own = world_;
      // The same names again for every row.
      if (own.store) own.store = c10::make_intrusive<c10d::PrefixStore>("selftest/" + number, world_.store);
      try {
        if (!train_row(row.words, own, folder_.path() / number)) return ExitCode::interrupted;
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("selftest, {}: {}", row.name, error.what()));
      }
      if (world_.rank != 0) continue;
      results.push_back(compare_selftest(row, folder_.path() / number, reference));
      if (!json) std::cout << selftest_line(results.back()) << std::endl;
    }
    if (world_.rank != 0) return ExitCode::success;
    const bool all = std::all_of(results.begin(), results.end(), [](const auto& one) { return one.passed(); });
    if (json) {
      std::cout << json_text(json_of(results)) << std::endl;
    } else {
      std::cout << selftest_verdict(results, world_.size, device.name, !device.device.is_cpu()) << std::endl;
    }
    return all ? ExitCode::success : ExitCode::silent_corruption;
  }

 private:
  /// False if a signal ended it.
  bool train_row(const std::vector<std::string>& row, const World& world, const std::filesystem::path& folder) {
    std::vector<std::string> words = words_;
    words.insert(words.end(), row.begin(), row.end());
    words.push_back("--job.dump_folder=" + folder.string());
    const LoadedConfig loaded = load_config(schema_, words, job_checks());
    if (!loaded.problems.empty()) throw Error(ExitCode::bad_config, loaded.problems.front().what);
    const Log quiet({.console = false, .file = folder / "log.txt"});
    const std::unique_ptr<Run> run = build_run(loaded.config, world, quiet);
    return train(*run) == ExitCode::success;
  }

  nlohmann::ordered_json json_of(const std::vector<SelftestResult>& results) const {
    nlohmann::ordered_json json{{"passed", true}, {"ranks", world_.size}, {"rows", nlohmann::ordered_json::array()}};
    for (const SelftestResult& one : results) {
      json["rows"].push_back({{"name", one.name},
                              {"passed", one.passed()},
                              {"loss", one.loss},
                              {"grad_norm", one.grad_norm},
                              {"loss_limit", one.limits.loss},
                              {"gradients", one.gradients},
                              {"gradients_limit", one.limits.gradients},
                              {"worst_parameter", one.worst_parameter}});
      if (!one.passed()) json["passed"] = false;
    }
    return json;
  }

  const Schema& schema_;
  std::vector<std::string> words_;
  const World& world_;
  const Log& log_;
  const OwnFolder folder_;
  int64_t rows_ = 0;
};

/// Measures. Rank 0 reports, and returns `launcher` if something is slow.
ExitCode check_network(const JobConfig& config, const World& world, const NetcheckOptions& options, bool json) {
  const DeviceInfo device = choose_device(config.training.device, world.local_rank);
  const DeviceMesh mesh = make_mesh(config, world.size);
  TransportOptions transport{.shared_memory = config.comm.shared_memory, .refused = {}};
  MeshCommunicators communicators =
      make_mesh_communicators(mesh, world.rank, std::chrono::seconds(config.comm.init_timeout_seconds),
                              communicator_maker(world, device.device, transport));
  const std::optional<NetcheckResult> result = measure_network(world, mesh, communicators, device.device, options);
  bool passed = true;
  if (result) {
    const NetcheckFindings findings = netcheck_findings(*result, options);
    const bool compared = netcheck_compares(*result, options);
    if (json) {
      std::cout << json_text(netcheck_json(*result, options, findings)) << std::endl;
    } else {
      for (const std::string& line : netcheck_table(*result, options)) std::cout << line << '\n';
      for (const std::string& slow : findings.slow) std::cout << "SLOW " << slow << '\n';
      for (const std::string& sentence : findings.in_common) std::cout << sentence << '\n';
      const size_t pairs = result->pairs.size();
      const std::string collectives = collectives_verdict(*result, options);
      std::cout << fmt::format("netcheck {}: {} ranks, {} pair{}, {} slow ({}){}{}{}",
                               findings.slow.empty() ? "passed" : "failed", world.size, pairs, pairs == 1 ? "" : "s",
                               findings.slow.size(), communicators.world->transport(), collectives.empty() ? "" : "; ",
                               collectives,
                               compared ? "" : "; nothing was compared: give --hardware, or use three ranks or hosts")
                << std::endl;
    }
    passed = findings.slow.empty();
  }
  communicators.shut_down();
  return passed ? ExitCode::success : ExitCode::launcher;
}

NetcheckOptions netcheck_options(const NetcheckWords& words) {
  NetcheckOptions options;
  options.largest_bytes = words.largest_mib << 20;
  options.slow = words.slow;
  if (!words.hardware.empty()) {
    constexpr Rewording kOwnOption{"--gpu", "--hardware"};
    in_words_of_command(std::span(&kOwnOption, 1), [&] {
      const Hardware hardware = find_hardware(words.hardware);
      options.host_rate = hardware.nvlink_rate;
      options.network_rate = hardware.network_rate;
    });
  }
  return options;
}

/// Loads the config, joins the other ranks and calls `check`, whose result is the exit code.
int check_cluster(const Schema& schema, const std::vector<std::string>& words,
                  const std::function<ExitCode(const JobConfig&, const World&, const Log&)>& check) {
  if (!words.empty()) refuse_mistyped_command(words[0]);
  const LoadedConfig loaded = load_config(schema, words, job_checks());
  if (const int code = report_config_problems(loaded)) return code;
  const StopSignals signals;
  RankSession session(schema, loaded.config, detect_launch(loaded.config), nullptr, /*output_is_result=*/true);
  ExitCode code = ExitCode::success;
  try {
    code = check(loaded.config, session.join(), session.log());
  } catch (...) {
    session.fail();
  }
  return session.end(code);
}

}  // namespace

int run_selftest(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<SelftestWords> options = parse_selftest(arguments, std::cout);
  if (!options) return 0;
  return check_cluster(schema, options->rest, [&](const JobConfig& config, const World& world, const Log& log) {
    const DeviceInfo device = choose_device(config.training.device, world.local_rank);
    return Selftest(schema, options->rest, world, log).run(device, options->json);
  });
}

int run_netcheck(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<NetcheckWords> words = parse_netcheck(arguments, std::cout);
  if (!words) return 0;
  const NetcheckOptions options = netcheck_options(*words);
  return check_cluster(schema, words->rest, [&](const JobConfig& config, const World& world, const Log&) {
    if (world.size == 1) {
      throw Error(
          ExitCode::bad_config,
          "netcheck measures the links between ranks, and this is a single process; start it with a launcher, such as "
          "titan_train launch -n 4 netcheck");
    }
    return check_network(config, world, options, words->json);
  });
}

}  // namespace titan
