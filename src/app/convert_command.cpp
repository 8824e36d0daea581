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
#include "titan/cli/facts.h"
#include "titan/cli/options.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"
#include "titan/job/start.h"
#include "titan/tools/convert.h"
#include "titan/train/threads.h"

namespace titan {
namespace {

using Convert = void (*)(const WeightConversion& conversion, std::ostream& out);
constexpr std::array<std::pair<std::string_view, Convert>, 6> kConversions{{{"from-hf", convert_from_hugging_face},
                                                                            {"to-hf", convert_to_hugging_face},
                                                                            {"from-meta", convert_from_meta},
                                                                            {"to-2024", convert_to_2024},
                                                                            {"to-2026", convert_to_2026},
                                                                            {"verify", verify_weights}}};

/// Whether a config file, or one of these options, is given.
bool names_any(const LoadedConfig& loaded, std::initializer_list<const char*> keys) {
  return !loaded.config.job.config_file.empty() ||
         std::any_of(keys.begin(), keys.end(), [&](const char* key) { return loaded.origins.is_set(key); });
}

/// The config. If it names no model and `from` is in Hugging Face's format, uses the model of the folder's config.json.
/// `names_model`: set if the config names one.
LoadedConfig load_conversion(const Schema& schema, const ConvertOptions& options, bool& names_model) {
  LoadedConfig loaded = load_config(schema, options.rest, job_checks());
  names_model = names_any(loaded, {"model.name", "model.flavor"});
  const bool reads_theirs = options.direction == "from-hf" || options.direction == "verify";
  std::error_code unknown;
  if (names_model || !loaded.problems.empty() || !reads_theirs ||
      !std::filesystem::exists(std::filesystem::path(options.from) / "config.json", unknown)) {
    return loaded;
  }
  const int64_t length = loaded.config.training.seq_len;
  // A conversion trains nothing, so its length must not be what refuses the model: every model reads 8 tokens.
  std::vector<std::string> words{"--model.from_hf=" + options.from, "--training.seq_len=8"};
  words.insert(words.end(), options.rest.begin(), options.rest.end());
  loaded = load_config(schema, words, job_checks());
  const int64_t most = loaded.config.model.max_seq_len;
  loaded.config.training.seq_len = most > 0 ? std::min(most, length) : length;
  return loaded;
}

}  // namespace

int run_convert(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<ConvertOptions> options = parse_convert(arguments, std::cout);
  if (!options) return 0;
  bool names_model = false;
  LoadedConfig loaded = load_conversion(schema, *options, names_model);
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  for (const std::string& line : use_found_inputs(loaded, find_inputs(loaded))) std::cerr << line << '\n';
  const bool reads_checkpoint = !options->direction.starts_with("from-");
  constexpr double kGigabyte = 1e9;
  use_threads(default_threads());
  const auto conversion = std::find_if(kConversions.begin(), kConversions.end(),
                                       [&](const auto& one) { return one.first == options->direction; });
  TITAN_CHECK(conversion != kConversions.end(), options->direction);
  conversion->second(
      {reads_checkpoint ? newest_checkpoint(options->from) : std::filesystem::path(options->from), options->to,
       loaded.config, names_model, names_any(loaded, {"model.tokenizer_path", "model.hf_assets_path"}), options->dtype,
       static_cast<int64_t>(options->shard_gigabytes * kGigabyte), options->data_ranks},
      std::cout);
  return 0;
}

}  // namespace titan
