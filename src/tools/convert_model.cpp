#include "convert_model.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/job/job.h"
#include "titan/train/hugging_face.h"

namespace titan {
namespace {

using Form = ForeignSettings::Format;

/// Sets the tokenizer's vocabulary size to `words`, if the flavor has none of its own.
ModelRequest with_vocabulary(ModelRequest request, int64_t words) {
  request.tokenizer_vocabulary = words;
  try {
    describe_model(request);
  } catch (const Error&) {  // the flavor's own vocabulary is smaller than the tokenizer's: the weights decide, not it
    request.tokenizer_vocabulary = 1;
  }
  return request;
}

/// Returns the result of `open`. Errors about damaged files name the folder.
template <class Open>
auto naming(const std::filesystem::path& folder, const char* verdict, const Open& open) {
  const auto failed = [&](const Error& error) {
    return Error(error.code(), fmt::format("{} {}: {}", folder.string(), verdict, error.what()));
  };
  try {
    return open();
  } catch (const DamageError& error) {
    throw failed(error);
  } catch (const PickleError& error) {
    throw failed(error);
  }
}

/// Reports weights of another program where only checkpoints can be read.
void refuse_other_forms(const std::filesystem::path& folder) {
  std::error_code unknown;
  const auto refuse_if = [&](const char* file, const char* what) {
    if (!std::filesystem::exists(folder / file, unknown)) return;
    throw Error(ExitCode::storage, fmt::format("{} holds a model in {}", folder.string(), what));
  };
  refuse_if("config.json", "Hugging Face's form: titan_train convert from-hf");
  refuse_if("params.json", "Meta's form: titan_train convert from-meta");
}

int64_t vocabulary_in(const ForeignSettings& settings) {
  const nlohmann::json& json = settings.json;
  const auto found = json.find("vocab_size");
  const bool given = found != json.end() && found->is_number_unsigned();
  return given ? std::max<int64_t>(1, found->get<int64_t>()) : 1;
}

std::vector<std::string> differences(const ForeignSettings& settings, const ModelRequest& request) {
  const StateDictAdapter& adapter = adapter_of(request);
  std::vector<std::string> sentences;
  for (const SettingDifference& difference : settings.format == Form::meta
                                                 ? adapter.meta_differences(settings.json, request)
                                                 : adapter.hugging_face_differences(settings.json, request)) {
    sentences.push_back(difference.sentence);
  }
  return sentences;
}

}  // namespace

std::string shown(const ModelRequest& request) { return request.model.name + " " + request.model.flavor; }

void expect_folder(const std::filesystem::path& folder) {
  std::error_code unknown;
  if (std::filesystem::is_directory(folder, unknown)) return;
  throw Error(ExitCode::storage,
              std::filesystem::exists(folder, unknown)
                  ? fmt::format("{} is a file; name the folder that contains it", folder.string())
                  : fmt::format("there is no folder {}; name a checkpoint (step-N), the folder of a run, "
                                "or a folder with config.json and safetensors",
                                folder.string()));
}

OpenCheckpoint open_checkpoint(Storage& storage, const std::filesystem::path& folder) {
  expect_folder(folder);
  if (!holds_checkpoint(storage, folder)) {
    const std::string inside = newest_inside(storage, folder);
    if (!inside.empty()) throw Error(ExitCode::storage, fmt::format("{} cannot be read: {}", folder.string(), inside));
    refuse_other_forms(folder);
  }
  return naming(folder, "is not a complete checkpoint",
                [&] { return OpenCheckpoint(storage, folder, /*all_sizes=*/true); });
}

SafetensorsFolder open_safetensors(Storage& storage, const std::filesystem::path& folder) {
  return naming(folder, "is not whole", [&] { return SafetensorsFolder(storage, folder); });
}

TensorSource& as_numbers(SafetensorsFolder& stored, const ForeignSettings& settings,
                         std::optional<BlockScaledWeights>& scaled) {
  const std::optional<ScaleBlock> block = quantisation_of(settings.json, settings.shown);
  if (!block) return stored;
  return scaled.emplace(stored, *block);
}

std::vector<LogicalTensor> parameters_of(const ModelRequest& request) {
  std::vector<LogicalTensor> parameters;
  const ModelDescription model = describe_model(request);
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& spec : unit.parameters) parameters.push_back({spec.name, at::kFloat, spec.shape});
  }
  return parameters;
}

ForeignSettings read_settings(const std::filesystem::path& folder, Form format) {
  const std::filesystem::path path = folder / (format == Form::meta ? "params.json" : "config.json");
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    if (std::filesystem::is_regular_file(folder, unknown)) expect_folder(folder);
    if (holds_checkpoint(*make_posix_storage(), folder)) {
      throw Error(ExitCode::storage,
                  fmt::format("{} is a checkpoint already; titan_train convert to-hf reads it", folder.string()));
    }
    refuse_other_forms(folder);
    throw Error(ExitCode::storage,
                fmt::format("there is no {}; name the folder that holds it and the weights", path.string()));
  }
  return {format, path.string(), read_settings_file(path)};
}

std::optional<ModelRequest> recognised(const ForeignSettings& settings) {
  for (const Architecture* architecture : architectures()) {
    for (const std::string& name : architecture->names()) {
      if (!find_state_dict_adapter(name)) continue;
      for (const std::string& flavor : architecture->flavors(name)) {
        ModelRequest request;
        request.model.name = name;
        request.model.flavor = flavor;
        request = with_vocabulary(std::move(request), vocabulary_in(settings));
        if (differences(settings, request).empty()) return request;
      }
    }
  }
  return std::nullopt;
}

ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const ForeignSettings& settings) {
  const std::optional<ModelRequest> known = recognised(settings);
  if (!conversion.names_model) {
    if (std::optional<ModelRequest> recorded = recorded_model(manifest)) {
      recorded = with_vocabulary(*recorded, vocabulary_in(settings));
      if (differences(settings, *recorded).empty()) return *recorded;
    }
    if (known) return *known;
    if (conversion.config.model.from_hf.empty()) {
      throw Error(ExitCode::bad_config,
                  fmt::format("{} is of no flavor known here; name its model with a config file, or with --model.name, "
                              "--model.flavor and --model.override.*",
                              settings.shown));
    }
  }
  const ModelRequest request = with_vocabulary(make_model_request(conversion.config, 1), vocabulary_in(settings));
  const std::vector<std::string> differ = differences(settings, request);
  if (differ.empty()) return request;
  throw Error(ExitCode::bad_config,
              fmt::format("{} is of another model than {}: {}{}", settings.shown, shown(request), join(differ, "; "),
                          known ? fmt::format("; it is of {}", shown(*known)) : ""));
}

ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const TensorSource& weights) {
  const std::optional<ModelRequest> recorded = conversion.names_model ? std::nullopt : recorded_model(manifest);
  const ModelRequest request = recorded ? *recorded : make_model_request(conversion.config, 1);
  const ModelDescription model = describe_model(request);
  for (const UnitDescription& unit : model.units) {
    if (unit.role != UnitRole::embedding || unit.parameters.empty()) continue;
    const auto table = weights.tensors().find(unit.parameters.front().name);
    if (table != weights.tensors().end() && !table->second.shape.empty()) {
      return with_vocabulary(request, std::max<int64_t>(1, table->second.shape[0]));
    }
  }
  return request;
}

}  // namespace titan
