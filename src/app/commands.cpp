#include "titan/app/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/cli/commands.h"
#include "titan/cli/facts.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/job/launch_environment.h"
#include "titan/plan/architecture.h"
#include "titan/train/device.h"

namespace titan {
std::span<const NamedCommand> commands_with_tensors() {
  static constexpr NamedCommand kAll[] = {
      {"train", run_train},       {"launch", run_launch},     {"ranks", run_ranks},       {"restart", run_restart},
      {"convert", run_convert},   {"generate", run_generate}, {"evaluate", run_evaluate}, {"selftest", run_selftest},
      {"netcheck", run_netcheck}, {"profile", run_profile},   {"report", run_report},     {"--version", run_version}};
  return kAll;
}

void refuse_mistyped_command(const std::string& word) {
  std::error_code ignored;
  const bool names_a_file = word.find_first_of("./") != std::string::npos || std::filesystem::exists(word, ignored);
  if (word.starts_with("-") || names_a_file) return;
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  const std::vector<std::string> close = nearest(word, names, 1);
  const std::string remedy = close.empty() ? config_file_remedy(word) : fmt::format("did you mean {}?", close.front());
  throw Error(ExitCode::bad_config,
              fmt::format("{} is neither a subcommand nor a config file; {} (titan_train help lists all subcommands)",
                          word, remedy));
}

bool trains_nothing(std::span<const std::string> words) {
  constexpr std::array<std::string_view, 5> kNames{"generate", "evaluate", "ranks", "selftest", "netcheck"};
  return !words.empty() && std::find(kNames.begin(), kNames.end(), words[0]) != kNames.end();
}

int64_t ranks_of_launch(const JobConfig& config) {
  const Launch launch = detect_launch(config.comm, process_context());
  const bool alone = launch.launcher.empty() && !launch.fake;
  return config.memory_estimation.enable && alone ? fewest_ranks(config) : launch.size;
}

ConfigCheck world_check(std::optional<int64_t> ranks) {
  return [ranks](const JobConfig& config, const Origins& origins) {
    try {
      return world_problems(config, origins, ranks ? *ranks : ranks_of_launch(config));
    } catch (const Error&) {
      return std::vector<Problem>();  // bad launcher variables: the rendezvous reports them once, for all ranks
    }
  };
}

namespace {

DeviceFacts facts_of_rank(const JobConfig& config) {
  Launch launch;
  try {
    launch = detect_launch(config.comm, process_context());
  } catch (const Error&) {  // the rendezvous reports these, too
  }
  DeviceFacts facts = device_facts(config.training.device, launch.local_rank.value_or(0));
  const bool several_hosts = launch.local_size.value_or(launch.size) < launch.size;
  if (several_hosts && !launch.fake) facts.host_ranks = launch.local_size;  // in a dry run no rank needs another
  return facts;
}

}  // namespace

ConfigCheck device_check() {
  return [](const JobConfig& config, const Origins& origins) {
    return device_problems(config, origins, facts_of_rank(config));
  };
}

std::vector<Problem> reader_device_problems(const JobConfig& config, const Origins& origins) {
  DeviceFacts facts = facts_of_rank(config);
  facts.trains = false;
  return device_problems(config, origins, facts);
}

}  // namespace titan
