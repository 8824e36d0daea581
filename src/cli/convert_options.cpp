#include "titan/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/cli/program.h"
#include "titan/config/section.h"

namespace titan {
namespace {

struct Direction {
  const char* name;
  const char* from;
  const char* to;  // null: writes nothing
  const char* purpose;
  const char* example;
};
constexpr std::array<Direction, 6> kDirections{{
    {"from-hf", "HF_FOLDER", "CHECKPOINT", "Convert a Hugging Face folder to a checkpoint", "Llama-3.1-8B/ llama31-8b"},
    {"to-hf", "CHECKPOINT", "HF_FOLDER", "Convert the model in a checkpoint to a folder for transformers",
     "outputs/mine/checkpoint/step-1000 my-model --dtype bfloat16"},
    {"from-meta", "META_FOLDER", "CHECKPOINT", "Convert consolidated.NN.pth and params.json to a checkpoint",
     "Meta-Llama-3-8B/original/ llama3-8b"},
    {"to-2024", "CHECKPOINT", "CHECKPOINT_2024", "Convert a checkpoint to the format of torchtitan of December 2024",
     "outputs/mine/checkpoint/step-1000 2024/step-1000"},
    {"to-2026", "CHECKPOINT", "CHECKPOINT_2026",
     "Convert a checkpoint to the format of torchtitan's last release with TOML configs",
     "outputs/mine/checkpoint/step-1000 2026/step-1000 --data-ranks 16"},
    {"verify", "FOLDER", nullptr, "Verify a checkpoint or a Hugging Face folder", "my-model"},
}};

void print_help(std::ostream& out) {
  out << "Weights between checkpoints and the files of other programs\n"
         "Usage: titan_train convert DIRECTION … [CONFIG] [--section.key value]…\n\n";
  for (const Direction& direction : kDirections) {
    out << fmt::format("  {:<10}{:<12} {:<16} {}\n", direction.name, direction.from, direction.to ? direction.to : "",
                       direction.purpose);
  }
  out << "\nOur checkpoints and exports record their model, published ones are recognised, and of others "
         "config.json is\n"
         "read; a config, or --model.name and --model.flavor, names another. titan_train convert DIRECTION "
         "--help has the\n"
         "options.\n\nExample:\n  titan_train convert from-hf Llama-3.1-8B/ llama31-8b\n";
}

[[noreturn]] void fail_unknown(const std::string& word) {
  if (word == "to-torch") {  // scripts may still use it; it was given up because PyTorch's own tool does the same
    throw Error(ExitCode::bad_config,
                "convert has no direction to-torch; python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
                "CHECKPOINT FILE writes a checkpoint as one file for torch.load");
  }
  const std::vector<std::string> close = nearest(word, convert_command_words(), 1);
  const std::string hint = close.empty() ? "" : fmt::format("; did you mean {}?", close.front());
  throw Error(ExitCode::bad_config,
              fmt::format("convert has no direction {}{} (titan_train convert --help)", word, hint));
}

/// Throws Error(bad_config) with the direction that was probably meant.
const Direction& find_direction(const std::string& word) {
  for (const Direction& direction : kDirections) {
    if (word == direction.name) return direction;
  }
  fail_unknown(word);
}

/// Limits of `--shard-gigabytes`, a kilobyte to a petabyte: its bytes must fit in 64 bits.
constexpr double kLeastGigabytes = 1e-6, kMostGigabytes = 1e6;

/// The error message for the word; CLI::Range accepts nan for a number in its range.
std::string expect_gigabytes(const std::string& word) {
  double number = 0;
  const bool fits = CLI::detail::lexical_cast(word, number) && number >= kLeastGigabytes && number <= kMostGigabytes;
  return fits ? std::string()
              : fmt::format("{} is not a number from {:f} to {:.0f}", word, kLeastGigabytes, kMostGigabytes);
}

}  // namespace

std::vector<std::string> convert_command_words() {
  std::vector<std::string> words;
  for (const Direction& direction : kDirections) words.emplace_back(direction.name);
  return words;
}

std::optional<ConvertOptions> parse_convert(std::span<const std::string> arguments, std::ostream& out) {
  if (arguments.empty()) throw Error(ExitCode::bad_config, "convert: say a direction (titan_train convert --help)");
  if (arguments[0] == "--help" || arguments[0] == "-h") {
    print_help(out);
    return std::nullopt;
  }
  const Direction& direction = find_direction(arguments[0]);
  const std::span<const std::string> words = arguments.subspan(1);
  ConvertOptions options;
  options.direction = direction.name;
  CLI::App app(direction.purpose, std::string("titan_train convert ") + direction.name);
  app.add_option(direction.from, options.from, "What is read")->required();
  if (direction.to) app.add_option(direction.to, options.to, "What is written; it must not be there")->required();
  if (std::string_view(direction.name) == "to-hf") {
    app.add_option("--dtype", options.dtype, "float32, bfloat16 or float16; without it: as stored")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
    app.add_option("--shard-gigabytes", options.shard_gigabytes, "Largest file, in 10^9 bytes; without it: 5")
        ->check(CLI::Validator(expect_gigabytes, ""));
  }
  if (std::string_view(direction.name).starts_with("to-20")) {
    app.add_option("--data-ranks", options.data_ranks,
                   "Data-parallel ranks of the torchtitan run that will load it; without it: as many as saved it")
        ->check(CLI::Range(int64_t{1}, kMostRanks));
  }
  app.allow_extras();
  app.footer(
      fmt::format("A config file and --section.key options follow: the model, training.dtype, model.tokenizer_path.\n\n"
                  "Example:\n  titan_train convert {} {}",
                  direction.name, direction.example));
  const bool asks =
      std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "--help" || w == "-h"; });
  if (!asks && (words.empty() || words[0].starts_with("-"))) {
    throw Error(ExitCode::bad_config, fmt::format("{}: {}{}{} first, then options (titan_train convert {} --help)",
                                                  direction.name, direction.from, direction.to ? " and " : "",
                                                  direction.to ? direction.to : "", direction.name));
  }
  if (!parse_words(app, words, out)) return std::nullopt;
  options.rest = app.remaining();
  return options;
}

}  // namespace titan
