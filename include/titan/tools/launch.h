// Starts the ranks of a run on this machine as copies of one program, passes their output and the user's signals on,
// and ends all when one fails. Does what torchrun does for one host, without Python; independent of training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace titan {

struct LaunchRequest {
  int64_t ranks = 1;
  std::filesystem::path program;
  std::vector<std::string> arguments;
  /// Ranks whose standard output is shown; empty: of all. Standard error is always shown.
  std::set<int64_t> shown_ranks;
  /// Where the standard output of the others goes: rank-NNNN.out, made when there is any.
  std::filesystem::path output_folder;
  /// Rank 0 inherits this process's standard output, because what it prints is a result. Lines that several ranks print
  /// to standard error are shown once.
  bool output_is_result = false;
  /// Printed when the ranks stopped after a save (exit code 75).
  std::string how_to_resume = "run the same command to resume";
};

/// Returns when every rank has ended: 0, or the exit code of the rank that failed first (128 + signal for one that was
/// killed). Ranks that only report a failed peer (74) are consequences, and count when there is nothing else.
/// Lines are passed on whole, with "[rank3] " before them. No rank outlives this process, however it ends.
/// Throws Error(launcher) when a rank cannot be started.
int launch_ranks(const LaunchRequest& request);

}  // namespace titan
