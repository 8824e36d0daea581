// The words of the commands that need tensors: what follows each on the command line. Parsed here, so that help and
// shell completion need no LibTorch.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/job/generation.h"

namespace titan {

/// An upper bound on tokens: more than any model here supports, and small enough to avoid overflow.
inline constexpr int64_t kMostTokens = int64_t{1} << 31;

struct GenerateOptions {
  std::string checkpoint;
  std::vector<std::string> prompts;
  std::string file;  // "-": standard input
  GenerationOptions generation;
  std::optional<int64_t> max_new_tokens, context;
  int64_t seed = 0;
  std::string dtype;
  bool json = false;
  bool uncached = false;
  bool chat = false;
  std::string system;
  std::vector<std::string> rest;  // --section.key options
};

struct EvaluateOptions {
  std::string checkpoint;
  std::string data;
  std::string text_field;
  bool nanogpt = false;  // the .bin files are of nanoGPT
  bool has_choices = false;
  std::string delimiter = " ";
  std::optional<bool> adds_bos;  // nothing: what the tokenizer does by default
  int64_t window = 0;
  int64_t limit = 0;
  std::string dtype;
  bool json = false;
  std::vector<std::string> rest;
};

struct ConvertOptions {
  std::string direction;  ///< a word of convert_command_words
  std::string from, to, dtype;
  double shard_gigabytes = 0;
  int64_t data_ranks = 0;
  std::vector<std::string> rest;  // the config and its overrides
};

struct LaunchOptions {
  int64_t ranks = 0;
  std::string log_rank = "0";
  int64_t restarts = 0;           // the most; 0: a failed run is not started again
  std::vector<std::string> rest;  // command line of the ranks
};

struct RestartOptions {
  int64_t exit_code = 0;
  int64_t began = 0;  // seconds since 1970; 0: not known
  int64_t restarts = 100;
  std::string supervisor = "a job script";
  std::vector<std::string> rest;  // command line of the run
};

struct RanksOptions {
  int64_t hold_seconds = 0;
  std::vector<int64_t> failing_ranks;
  std::vector<std::string> rest;  // the config and its overrides
};

struct SelftestWords {
  bool json = false;
  std::vector<std::string> rest;  // options of every run
};

struct NetcheckWords {
  bool json = false;
  std::string hardware;  // empty: no promise to compare with
  int64_t largest_mib = 64;
  double slow = 1.5;
  std::vector<std::string> rest;  // the config and its overrides
};

struct ProfileOptions {
  std::string trace;
  size_t top = 12;  ///< rows of a table
};

struct ReportOptions {
  std::vector<std::string> runs;  ///< folders
  std::string output;             ///< empty: the usual place
};

// Each parses the words after its command. If they ask for help, it prints the help to `out` and returns nothing.
// Throws Error(bad_config).

std::optional<GenerateOptions> parse_generate(std::span<const std::string> arguments, std::ostream& out);
std::optional<EvaluateOptions> parse_evaluate(std::span<const std::string> arguments, std::ostream& out);
std::optional<ConvertOptions> parse_convert(std::span<const std::string> arguments, std::ostream& out);
std::optional<LaunchOptions> parse_launch(std::span<const std::string> arguments, std::ostream& out);
std::optional<RestartOptions> parse_restart(std::span<const std::string> arguments, std::ostream& out);
std::optional<RanksOptions> parse_ranks(std::span<const std::string> arguments, std::ostream& out);
std::optional<SelftestWords> parse_selftest(std::span<const std::string> arguments, std::ostream& out);
std::optional<NetcheckWords> parse_netcheck(std::span<const std::string> arguments, std::ostream& out);
std::optional<ProfileOptions> parse_profile(std::span<const std::string> arguments, std::ostream& out);
std::optional<ReportOptions> parse_report(std::span<const std::string> arguments, std::ostream& out);

/// The directions of `convert`.
std::vector<std::string> convert_command_words();

}  // namespace titan
