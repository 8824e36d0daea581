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
  /// 0: the first start of these ranks; else they follow ranks that failed.
  int64_t attempt = 0;
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

struct LaunchEnd {
  int exit_code = 0;             // of the rank that failed first; 128 + signal if it was killed
  int signal = 0;                // that killed it
  std::optional<int64_t> rank;   // that failed first; none: no rank failed
  bool was_asked = false;        // this process received a signal that asks to end
  double failed = 0, ended = 0;  // when the first rank ended, and when all had; seconds since 1970
  std::string sentence;          // how it ended, if not all ranks ended with 0
  /// The part of `sentence` that a rank has printed to standard error and that is too long to be printed twice.
  std::string printed = {};
};

/// Returns after every rank has ended. Ranks that only report a failed peer (74) are consequences and count only if
/// there is no other failure. Forwards whole lines, with the prefix "[rank3] ". No rank outlives this process, however
/// it ends. Throws Error(launcher) if a rank cannot be started.
LaunchEnd launch_attempt(const LaunchRequest& request);

/// `words` contain the sentence of `end`. Replaces in them what a rank has printed by "(its message is above)".
std::string without_printed(std::string words, const LaunchEnd& end);

/// The same as launch_attempt; prints the sentence and returns the exit code.
int launch_ranks(const LaunchRequest& request);

}  // namespace titan
