// This process's rank, the world size and the rendezvous endpoint, from options and environment variables.
// detect_launch is a pure function of its arguments; titan/cli/facts.h reads the process. docs/launch.md has the table.
#pragma once

#include <fmt/format.h>
#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/base/error.h"
#include "titan/config/job_config.h"

namespace titan {

/// What a launcher passes to a process.
struct LaunchContext {
  /// The value of an environment variable; nothing when it is unset.
  std::function<std::optional<std::string>(std::string_view name)> variable;
  /// Id of the process that started this host's ranks: identifies the run where a launcher names no job.
  std::function<int64_t()> launcher_process;
};

/// Where the ranks of a run connect to each other.
struct RendezvousEndpoint {
  enum class Kind {
    nowhere,   ///< a single process or a dry run
    rank_zero  ///< rank 0 listens on the first free one of `ports`
  };
  Kind kind = Kind::nowhere;
  std::string host;
  std::vector<uint16_t> ports;
  std::string run;       ///< names the run; distinguishes runs that share a host
  std::string secret{};  ///< known only to the run's ranks; empty: none was given, and ranks prove `run` alone
  /// The launcher starts ranks again (torchrun), so ranks of an earlier attempt may still be there: rank 0 waits for
  /// its port and replaces ranks that leave, and the others look for another rank 0 when theirs ends while it gathers.
  bool restarts = false;
};

struct Launch {
  std::string launcher;  ///< "torchrun", "mpirun", …; empty for a single process
  int64_t rank = 0;
  int64_t size = 1;
  /// Among the ranks of its host, if the launcher sets it; else the rendezvous check finds it (rank_check.h).
  std::optional<int64_t> local_rank{};
  std::optional<int64_t> local_size{};
  bool fake = false;
  RendezvousEndpoint rendezvous{};
};

/// The first that applies: a dry run (comm.mode); comm.rank, comm.world_size and comm.master; RANK and WORLD_SIZE
/// (torchrun, titan_train launch); Open MPI; PMI (MPICH, Intel MPI); a Slurm step; other launchers; a single process.
/// Throws Error(launcher) with a remedy for variables that contradict each other or are incomplete.
Launch detect_launch(const CommSection& comm, const LaunchContext& context);

/// The first host of Slurm's list notation: "n[001-015],h2" → "n001", "n[07,9]-x" → "n07-x".
/// Throws Error(launcher) when the list is empty or a bracket is not closed.
std::string first_node(std::string_view node_list);

/// Tasks of node `index` in Slurm's notation: "4(x2),3" is 4, 4, 3. Nothing when the text is malformed or too short.
std::optional<int64_t> tasks_of_node(std::string_view tasks_per_node, int64_t index);

/// Nine ports above Linux's ephemeral range, derived from `key`: 61440 + (key + 0…8) mod 4096. All ranks of a run try
/// the same ones in the same order.
std::vector<uint16_t> derived_ports(uint64_t key);

// Environment variables, with the errors for those that a launcher should have set.

/// A value for a message, shortened if it is as long as a list of many hosts.
inline std::string as_shown(std::string_view value) {
  // Half a line: what is wrong with the value, and the remedy, must be seen, too.
  constexpr size_t kMost = 60;
  if (value.size() <= kMost) return fmt::format("\"{}\"", value);
  return fmt::format("\"{}…\" ({} bytes)", value.substr(0, kMost), value.size());
}

class EnvironmentVariables {
 public:
  explicit EnvironmentVariables(const LaunchContext& context) : context_(context) {}

  /// Nothing when the variable is unset or empty.
  std::optional<std::string> text(std::string_view name) const {
    std::optional<std::string> value = context_.variable(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  std::string text_or(std::string_view name, std::string otherwise) const {
    return text(name).value_or(std::move(otherwise));
  }
  bool has(std::string_view name) const { return text(name).has_value(); }

  /// Throws Error(launcher) when the variable is set to anything but a whole number ≥ 0.
  std::optional<int64_t> number(std::string_view name) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), parsed);
    if (error != std::errc() || end != value->data() + value->size() || parsed < 0) {
      throw Error(ExitCode::launcher,
                  fmt::format("{} = {} is not a whole number; unset it, or start the run with a launcher that sets it",
                              name, as_shown(*value)));
    }
    return parsed;
  }
  int64_t number_or(std::string_view name, int64_t otherwise) const { return number(name).value_or(otherwise); }

  /// Throws Error(launcher) when `name` is unset, naming `because`, a variable that is set.
  int64_t required_number(std::string_view name, std::string_view because) const {
    if (const std::optional<int64_t> value = number(name)) return *value;
    throw Error(
        ExitCode::launcher,
        fmt::format("{} is set and {} is not; unset the first, or say comm.rank, comm.world_size and comm.master",
                    because, name));
  }

 private:
  const LaunchContext& context_;
};

}  // namespace titan
