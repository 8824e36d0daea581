// titan_train ranks: the rendezvous without training. Shows within seconds whether the processes find each other and
// where they run, and how launcher and scheduler handle a failure.
#include <algorithm>
#include <iostream>
#include <sstream>

#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/app/rank_session.h"
#include "titan/base/stop_signals.h"
#include "titan/cli/options.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

/// Every rank adds its number to a sum in the store and reads it, through its own connection.
void check_agreement(const World& world) {
  world.store->add("ranks/sum", world.rank + 1);
  if (world.store->add("ranks/count", 1) == world.size) world.store->set("ranks/all", "here");
  world.store->wait({"ranks/all"});
  const int64_t sum = world.store->add("ranks/sum", 0);
  if (sum == world.size * (world.size + 1) / 2) return;
  throw Error(ExitCode::launcher,
              fmt::format("the store holds what ranks 0 to {} did not write ({}); see whether another run "
                          "uses its port as well",
                          world.size - 1, sum));
}

void check_failing(const std::vector<int64_t>& ranks, int64_t size) {
  for (const int64_t rank : ranks) {
    if (rank >= 0 && rank < size) continue;
    throw Error(ExitCode::bad_config, fmt::format("ranks: --fail {} is not a rank of 0 to {}", rank, size - 1));
  }
}

/// Blocks in the store, which checks neither signals nor other ranks: simulates a hang in a collective.
void hold(const World& world, int64_t seconds) {
  if (seconds == 0) return;
  try {
    world.store->wait({"ranks/never"}, std::chrono::seconds(seconds));
  } catch (const c10::Error&) {
    // A timeout; or the store is lost, which the watcher reports in more detail.
  }
}

void check_ranks(const RanksOptions& options, const World& world, const Log& log) {
  const std::vector<int64_t>& failing = options.failing_ranks;
  check_failing(failing, world.size);
  if (world.store) {
    check_agreement(world);
    log.info("All {} ranks agree", world.size);
  } else {
    log.info("A single process: there are no other ranks");
  }
  if (std::find(failing.begin(), failing.end(), world.rank) != failing.end()) {
    throw Error(ExitCode::bug, fmt::format("rank {} fails because --fail asks for it", world.rank));
  }
  if (world.store) hold(world, options.hold_seconds);
}

}  // namespace

std::vector<std::string> config_words_of_ranks(std::span<const std::string> arguments) {
  std::ostringstream help;
  const std::optional<RanksOptions> options = parse_ranks(arguments, help);
  return options ? options->rest : std::vector<std::string>{};
}

int run_ranks(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<RanksOptions> options = parse_ranks(arguments, std::cout);
  if (!options) return 0;
  if (!options->rest.empty()) refuse_mistyped_command(options->rest[0]);
  const LoadedConfig loaded = load_config(schema, options->rest, job_checks());
  if (const int code = report_config_problems(loaded)) return code;
  const StopSignals signals;
  RankSession session(schema, loaded.config, detect_launch(loaded.config));
  try {
    check_ranks(*options, session.join(), session.log());
  } catch (...) {
    session.fail();
  }
  return session.end(StopSignals::received() != 0 ? ExitCode::interrupted : ExitCode::success);
}

}  // namespace titan
