#include "titan/app/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <optional>

#include "checkpoint_job.h"
#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/checkpoint/training_state.h"
#include "titan/cli/program.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/config/start.h"
#include "titan/job/checks.h"
#include "titan/tools/convert.h"
#include "titan/train/threads.h"

namespace titan {
namespace {

struct Direction {
  const char* name;
  const char* from;
  const char* to;  // null: writes nothing
  const char* purpose;
  const char* example;
  void (*run)(const WeightConversion& conversion, std::ostream& out);
};
constexpr std::array<Direction, 6> kDirections{{
    {"from-hf", "HF_FOLDER", "CHECKPOINT", "Convert a Hugging Face folder to a checkpoint", "Llama-3.1-8B/ llama31-8b",
     convert_from_hugging_face},
    {"to-hf", "CHECKPOINT", "HF_FOLDER", "Convert the model in a checkpoint to a folder for transformers",
     "outputs/mine/checkpoint/step-1000 my-model --dtype bfloat16", convert_to_hugging_face},
    {"from-meta", "META_FOLDER", "CHECKPOINT", "Convert consolidated.NN.pth and params.json to a checkpoint",
     "Meta-Llama-3-8B/original/ llama3-8b", convert_from_meta},
    {"to-2024", "CHECKPOINT", "CHECKPOINT_2024", "Convert a checkpoint to the format of torchtitan of December 2024",
     "outputs/mine/checkpoint/step-1000 2024/step-1000", convert_to_2024},
    {"to-2026", "CHECKPOINT", "CHECKPOINT_2026",
     "Convert a checkpoint to the format of torchtitan's last release with TOML configs",
     "outputs/mine/checkpoint/step-1000 2026/step-1000 --data-ranks 16", convert_to_2026},
    {"verify", "FOLDER", nullptr, "Verify a checkpoint or a Hugging Face folder", "my-model", verify_weights},
}};

struct ConvertOptions {
  std::string from, to, dtype;
  double shard_gigabytes = 0;
  int64_t data_ranks = 0;
  std::vector<std::string> rest;  // the config and its overrides
};

const Direction* find_direction(const std::string& word) {
  for (const Direction& direction : kDirections) {
    if (word == direction.name) return &direction;
  }
  return nullptr;
}

void print_help() {
  std::cout << "Weights between checkpoints and the files of other programs\n"
               "Usage: titan_train convert DIRECTION … [CONFIG] [--section.key value]…\n\n";
  for (const Direction& direction : kDirections) {
    std::cout << fmt::format("  {:<10}{:<12} {:<16} {}\n", direction.name, direction.from,
                             direction.to ? direction.to : "", direction.purpose);
  }
  std::cout << "\nOur checkpoints and exports record their model, published ones are recognised, and of others "
               "config.json is\n"
               "read; a config, or --model.name and --model.flavor, names another. titan_train convert DIRECTION "
               "--help has the\n"
               "options.\n\nExample:\n  titan_train convert from-hf Llama-3.1-8B/ llama31-8b\n";
}

/// Range of `--shard-gigabytes`: a kilobyte to a petabyte.
constexpr double kLeastGigabytes = 1e-6, kMostGigabytes = 1e6;

/// The error message for the word; CLI::Range accepts nan for a number in its range.
std::string expect_gigabytes(const std::string& word) {
  double number = 0;
  const bool fits = CLI::detail::lexical_cast(word, number) && number >= kLeastGigabytes && number <= kMostGigabytes;
  return fits ? std::string()
              : fmt::format("{} is not a number from {:f} to {:.0f}", word, kLeastGigabytes, kMostGigabytes);
}

std::optional<ConvertOptions> parse_convert(const Direction& direction, std::span<const std::string> words) {
  ConvertOptions options;
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
        ->check(CLI::Range(int64_t{1}, kMostDataRanks));
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
  if (!parse_words(app, words, std::cout)) return std::nullopt;
  if (options.from.empty() || (direction.to && options.to.empty())) {
    throw Error(ExitCode::bad_config, fmt::format("{}: a path is empty", direction.name));
  }
  options.rest = app.remaining();
  return options;
}

/// Whether a config file, or one of these options, is given.
bool names_any(const LoadedConfig& loaded, std::initializer_list<const char*> keys) {
  return !loaded.config.job.config_file.empty() ||
         std::any_of(keys.begin(), keys.end(), [&](const char* key) { return loaded.origins.is_set(key); });
}

/// The config. If it names no model and `from` is in Hugging Face's format, uses the model of the folder's config.json.
/// `names_model`: set if the config names one.
LoadedConfig load_conversion(const Schema& schema, const Direction& direction, const ConvertOptions& options,
                             bool& names_model) {
  LoadedConfig loaded = load_config(schema, options.rest, job_checks());
  names_model = names_any(loaded, {"model.name", "model.flavor"});
  const bool reads_theirs = direction.run == convert_from_hugging_face || direction.run == verify_weights;
  std::error_code unknown;
  if (names_model || !loaded.problems.empty() || !reads_theirs ||
      !std::filesystem::exists(std::filesystem::path(options.from) / "config.json", unknown)) {
    return loaded;
  }
  const int64_t length = loaded.config.training.seq_len;
  std::vector<std::string> words{"--model.from_hf=" + options.from, "--training.seq_len=8"};  // every model reads 8
  words.insert(words.end(), options.rest.begin(), options.rest.end());
  loaded = load_config(schema, words, job_checks());
  const int64_t most = loaded.config.model.max_seq_len;
  loaded.config.training.seq_len = most > 0 ? std::min(most, length) : length;
  return loaded;
}

[[noreturn]] void fail_unknown(const std::string& word) {
  if (word == "to-torch") {  // was a direction; PyTorch's own tool does the same
    throw Error(ExitCode::bad_config,
                "convert has no direction to-torch; python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
                "CHECKPOINT FILE writes a checkpoint as one file for torch.load");
  }
  const std::vector<std::string> close = nearest(word, convert_command_words(), 1);
  const std::string hint = close.empty() ? "" : fmt::format("; did you mean {}?", close.front());
  throw Error(ExitCode::bad_config,
              fmt::format("convert has no direction {}{} (titan_train convert --help)", word, hint));
}

}  // namespace

std::vector<std::string> convert_command_words() {
  std::vector<std::string> words;
  for (const Direction& direction : kDirections) words.emplace_back(direction.name);
  return words;
}

int run_convert(const Schema& schema, std::span<const std::string> arguments) {
  if (arguments.empty()) throw Error(ExitCode::bad_config, "convert: say a direction (titan_train convert --help)");
  if (arguments[0] == "--help" || arguments[0] == "-h") {
    print_help();
    return 0;
  }
  const Direction* direction = find_direction(arguments[0]);
  if (!direction) fail_unknown(arguments[0]);
  const std::optional<ConvertOptions> options = parse_convert(*direction, arguments.subspan(1));
  if (!options) return 0;
  bool names_model = false;
  LoadedConfig loaded = load_conversion(schema, *direction, *options, names_model);
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  for (const std::string& line : locate_inputs(loaded)) std::cerr << line << '\n';
  const bool reads_checkpoint = !std::string_view(direction->name).starts_with("from-");
  constexpr double kGigabyte = 1e9;
  use_threads(default_threads());
  direction->run(
      {reads_checkpoint ? newest_checkpoint(options->from) : std::filesystem::path(options->from), options->to,
       loaded.config, names_model, names_any(loaded, {"model.tokenizer_path", "model.hf_assets_path"}), options->dtype,
       static_cast<int64_t>(options->shard_gigabytes * kGigabyte), options->data_ranks},
      std::cout);
  return 0;
}

}  // namespace titan
