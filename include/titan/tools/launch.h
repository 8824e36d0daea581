// Starts the ranks of a run on this machine as copies of one program, forwards their output and the user's signals, and
// terminates all if one fails. Replaces torchrun for one host, without Python; independent of training.
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
  /// Ranks whose standard output is shown; empty: all. Standard error is always shown.
  std::set<int64_t> shown_ranks;
  /// Folder for the standard output of the others: rank-NNNN.out, created if there is any.
  std::filesystem::path output_folder;
  /// If set: rank 0 inherits this process's standard output, which is the result of the command, and a line that any
  /// rank has already printed to standard error is not repeated.
  bool output_is_result = false;
  /// Printed if the ranks stopped after a save (exit code 75).
  std::string how_to_resume = "run the same command to resume";
};

/// Returns after every rank has ended: 0, or the exit code of the rank that failed first (128 + signal if it was
/// killed). Ranks that only report a failed peer (74) are consequences and count only if there is no other failure.
/// Forwards whole lines, with the prefix "[rank3] ". No rank outlives this process, however it ends. Throws
/// Error(launcher) if a rank cannot be started.
int launch_ranks(const LaunchRequest& request);

}  // namespace titan
