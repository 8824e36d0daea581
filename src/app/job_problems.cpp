#include "titan/app/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/cli/facts.h"
#include "titan/config/config_command.h"
#include "titan/distributed/rendezvous.h"
#include "titan/job/start.h"

namespace titan {
namespace {

/// Returns nothing if the launch environment is wrong too: that error is reported where the environment is used.
std::optional<Launch> find_launch(const CommSection& comm) {
  try {
    return detect_launch(comm, process_context());
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Ends the other ranks of the run instead of letting them wait. False if rank 0 did not receive the problem.
bool send_problem_to_ranks(const Launch& launch, const std::string& text, ExitCode code) {
  RankFacts facts;
  facts.host = host_name();
  facts.process = ::getpid();
  facts.problem = trim(text);
  facts.problem_code = static_cast<int>(code);
  try {
    join_ranks(launch, std::move(facts), {}, [](const std::string&, bool) {});
  } catch (const RefusedByRankZero&) {
    return true;
  } catch (const Error&) {
  }
  return false;
}

/// Each problem is reported once, by rank 0: its own at once, and those of ranks that reach it. `launch`: of this
/// process, if it is one rank of several.
int report_problems(const std::optional<Launch>& launch, const std::vector<Problem>& problems, ExitCode code) {
  if (problems.empty()) return 0;
  std::ostringstream text;
  print_problems(text, problems);
  const bool has_peers = launch && launch->rendezvous.kind != RendezvousEndpoint::Kind::nowhere;
  const bool prints = !has_peers || launch->rank == 0;
  if (prints) std::cerr << text.str() << std::flush;
  if (has_peers && !send_problem_to_ranks(*launch, text.str(), code) && !prints) std::cerr << text.str();
  return static_cast<int>(code);
}

}  // namespace

int report_config_problems(const LoadedConfig& loaded) {
  return report_problems(find_launch(loaded.config.comm), loaded.problems, ExitCode::bad_config);
}

int report_job_problems(const LoadedConfig& loaded, bool is_rank) {
  const StartCheck start = check_start(loaded, machine_facts(loaded));
  return report_problems(is_rank ? find_launch(loaded.config.comm) : std::nullopt, start.problems, start.code);
}

}  // namespace titan
