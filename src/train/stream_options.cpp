#include "titan/train/stream_options.h"

#include <fmt/format.h>

#include <vector>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/data/chunk_mixture.h"

namespace titan {
namespace {

constexpr const char* kOptions = "options";

/// 0.7 and 0.3 are 7 and 3.
std::vector<int64_t> mixture_weights(const JobConfig& config) {
  std::vector<double> weights;
  for (const MixtureSource& source : config.data.mixture) weights.push_back(source.weight);
  return integer_weights(weights);
}

}  // namespace

nlohmann::json stream_options(const JobConfig& config) {
  nlohmann::json options{{"data.packing", config.data.packing}};
  if (config.training.dataset == "mixture") options["data.mixture weights"] = mixture_weights(config);
  if (config.training.dataset == "stories") return options;  // data.shuffle has no effect on them
  options["data.shuffle"] = config.data.shuffle;
  if (config.data.shuffle) options["data.shuffle_seed"] = config.data.shuffle_seed;
  return options;
}

void note_stream_options(nlohmann::json& position, const JobConfig& config) {
  position[kOptions] = stream_options(config);
}

void check_stream_options(const nlohmann::json& position, const JobConfig& config) {
  const nlohmann::json before = position.is_object() ? position.value(kOptions, nlohmann::json()) : nlohmann::json();
  if (!before.is_object()) return;
  const nlohmann::json now = stream_options(config);
  std::vector<std::string> was, is;
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key) || before.at(key) == value) continue;
    was.push_back(fmt::format("{} = {}", key, before.at(key).dump()));
    is.push_back(value.dump());
  }
  if (was.empty()) return;
  throw Error(ExitCode::bad_config,
              fmt::format("the checkpoint's data were read with {}, and this run has {}: the place in one sequence of "
                          "batches is none in another; resume as it was saved, or start the data anew with "
                          "checkpoint.exclude_from_loading = [\"dataloader\"]",
                          join(was, ", "), join(is, ", ")));
}

}  // namespace titan
