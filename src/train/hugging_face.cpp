#include "titan/train/hugging_face.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/config/hugging_face_settings.h"
#include "titan/corpus/vocabulary.h"
#include "titan/job/job.h"
#include "titan/text/chat.h"
#include "titan/train/open_data.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kGenerationConfig = "generation_config.json";
/// What transformers reads for a tokenizer and its generation: an export copies those that are there.
constexpr std::array<const char*, 10> kTokenizerFiles{"tokenizer.json",     "tokenizer_config.json",
                                                      "tokenizer.model",    "special_tokens_map.json",
                                                      "added_tokens.json",  "vocab.json",
                                                      "merges.txt",         "chat_template.jinja",
                                                      "chat_template.json", kGenerationConfig};

/// Contents of the tokenizer files at `place`, a folder or one file.
std::vector<CompanionFile> tokenizer_files(const fs::path& place) {
  std::vector<CompanionFile> files;
  std::error_code unknown;
  if (fs::is_regular_file(place, unknown)) {
    const bool is_json = place.extension() == ".json";
    files.push_back({is_json ? "tokenizer.json" : "tokenizer.model", read_file(place)});
    return files;
  }
  for (const char* name : kTokenizerFiles) {
    if (fs::is_regular_file(place / name, unknown)) files.push_back({name, read_file(place / name)});
  }
  return files;
}

/// The config that `transformers` needs besides a tokenizer.model to know its special tokens.
Json tokenizer_config(const Tokenizer& tokenizer) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (tokenizer.bos_id() != Tokenizer::kNoId) config["bos_token"] = tokenizer.token_name(tokenizer.bos_id());
  if (tokenizer.eos_id() != Tokenizer::kNoId) config["eos_token"] = tokenizer.token_name(tokenizer.eos_id());
  for (const auto& [name, id] : tokenizer.special_tokens()) {
    config["added_tokens_decoder"][std::to_string(id)] = {{"content", name}, {"special", true}, {"normalized", false}};
  }
  return config;
}

/// Adds the chat template that the config names, and its stop ids to `ends`; the template of `auto` is already among
/// the tokenizer's files.
void add_chat_template(const JobConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer,
                       std::vector<CompanionFile>& files, std::vector<int32_t>& ends, std::vector<std::string>& notes) {
  if (config.data.chat_template == "auto") return;
  const auto named = [](const char* name) { return [=](const CompanionFile& file) { return file.name == name; }; };
  try {
    const std::shared_ptr<const ChatTemplate> form = open_chat_template(config, tokenizer);
    std::erase_if(files, named("chat_template.jinja"));
    files.push_back({"chat_template.jinja", form->source()});
    for (const int32_t id : form->stop_ids()) {
      if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    }
  } catch (const Error& error) {
    notes.push_back(fmt::format("no chat template is exported: {}", error.what()));
    return;
  }
  if (std::none_of(files.begin(), files.end(), named("tokenizer_config.json"))) {
    files.push_back({"tokenizer_config.json", tokenizer_config(*tokenizer).dump(2) + "\n"});
  }
}

/// The known ones of bos_token_id and eos_token_id.
Json token_ids(const Tokenizer* tokenizer) {
  Json ids = Json::object();
  if (tokenizer && tokenizer->bos_id() != Tokenizer::kNoId) ids["bos_token_id"] = tokenizer->bos_id();
  if (tokenizer && tokenizer->eos_id() != Tokenizer::kNoId) ids["eos_token_id"] = tokenizer->eos_id();
  return ids;
}

}  // namespace

const StateDictAdapter& adapter_of(const ModelRequest& request) {
  const StateDictAdapter* adapter = find_state_dict_adapter(request.model.name);
  if (!adapter) {
    throw Error(ExitCode::bad_config, fmt::format("no other program has a form for model {}", request.model.name));
  }
  return *adapter;
}

std::shared_ptr<const Tokenizer> tokenizer_at(const fs::path& place) {
  try {
    return open_vocabulary(place);
  } catch (const Error&) {
    return nullptr;
  }
}

std::vector<CompanionFile> make_companions(const JobConfig& config, const ModelRequest& request, at::ScalarType type,
                                           std::vector<std::string>& notes) {
  const fs::path place = tokenizer_location(config);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_at(place);
  // A tokenizer of ids only has no files; those of the original tokenizer may be in the folder of the model's weights.
  const bool ids_alone = tokenizer && !tokenizer->reads_text();
  const fs::path where = ids_alone ? fs::path(config.model.hf_assets_path) : place;
  std::error_code unknown;
  std::vector<CompanionFile> files;
  if (!ids_alone || fs::is_directory(where, unknown)) files = tokenizer_files(where);
  if (files.empty()) notes.push_back(fmt::format("no tokenizer is exported: there is none at {}", where.string()));
  std::vector<int32_t> ends;  // generation stops at the end of a text, and at that of a model's turn
  if (tokenizer && tokenizer->eos_id() != Tokenizer::kNoId) ends.push_back(tokenizer->eos_id());
  if (tokenizer && !ids_alone) add_chat_template(config, tokenizer, files, ends, notes);
  const Json ids = token_ids(tokenizer.get());
  Json model = adapter_of(request).hugging_face_config(request);
  model.update(ids);
  model["torch_dtype"] = python_name(type);
  files.push_back({"config.json", model.dump(2) + "\n"});
  const bool has_generation =
      std::any_of(files.begin(), files.end(), [](const CompanionFile& file) { return file.name == kGenerationConfig; });
  if (!has_generation) {
    Json generation = Json::object();
    generation["_from_model_config"] = true;
    generation.update(ids);
    if (!ends.empty()) generation["eos_token_id"] = ends.size() == 1 ? Json(ends[0]) : Json(ends);
    files.push_back({kGenerationConfig, generation.dump(2) + "\n"});
  }
  return files;
}

nlohmann::json read_settings_file(const fs::path& path) {
  const std::string text = make_posix_storage()->read_all(path);
  refuse_kind(kind_of(text), path, ExitCode::storage);
  nlohmann::json json = parse_json(text, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(ExitCode::storage, path.string() + " is not a JSON object");
  return json;
}

void expect_their_model(const std::filesystem::path& folder) {
  std::error_code unknown;
  if (std::filesystem::is_regular_file(folder, unknown)) {
    throw Error(ExitCode::storage,
                fmt::format("checkpoint.initial_load_in_hf: {} is a file; name the folder of the model, with its "
                            "config.json, in checkpoint.initial_load_path",
                            folder.string()));
  }
  const std::vector<StorageEntry> files = make_posix_storage()->list(folder);
  if (std::filesystem::exists(folder / "config.json", unknown)) return;
  if (is_checkpoint(files)) {
    throw Error(ExitCode::storage, fmt::format("{} is a checkpoint, not a model in Hugging Face's form: leave out "
                                               "checkpoint.initial_load_in_hf",
                                               folder.string()));
  }
  const bool is_there = std::filesystem::exists(folder, unknown);
  throw Error(
      ExitCode::storage,
      fmt::format("checkpoint.initial_load_in_hf: {}{}{}; name the folder of the model, with its config.json, "
                  "in checkpoint.initial_load_path (without that it is model.hf_assets_path)",
                  is_there ? "" : "there is no folder ", folder.string(), is_there ? " holds no config.json" : ""));
}

std::string check_settings(const fs::path& folder, const ModelRequest& request, WeightUse use) {
  const fs::path path = folder / "config.json";
  std::error_code unknown;
  if (!fs::exists(path, unknown)) return {};
  std::vector<std::string> another, changed;
  for (const SettingDifference& difference :
       adapter_of(request).hugging_face_differences(read_settings_file(path), request)) {
    const bool is_meant = difference.changed_on_purpose && use == WeightUse::begin;
    (is_meant ? changed : another).push_back(difference.sentence);
  }
  if (!another.empty()) {
    throw Error(ExitCode::bad_config,
                fmt::format("{} is of another model than {} {}: {}; name the model of these weights with model.flavor "
                            "and model.override",
                            path.string(), request.model.name, request.model.flavor, join(another, "; ")));
  }
  if (changed.empty()) return {};
  return fmt::format("{}: {}; the weights are used anyway", path.string(), join(changed, "; "));
}

std::optional<ScaleBlock> quantisation_of(const nlohmann::json& settings, const std::string& shown) {
  const auto found = settings.find("quantization_config");
  if (found == settings.end() || !found->is_object()) return std::nullopt;
  if (const std::string method = unreadable_quantisation(settings); !method.empty()) {
    throw Error(
        ExitCode::storage,
        fmt::format("{} says that its weights are quantised by {}, of which this program reads fp8 (e4m3) with a "
                    "weight_block_size alone; take the weights that were not quantised",
                    shown, method));
  }
  const nlohmann::json& sizes = found->at("weight_block_size");
  return ScaleBlock{sizes[0].get<int64_t>(), sizes[1].get<int64_t>()};
}

std::optional<ScaleBlock> expected_quantisation(const fs::path& folder, bool is_expected) {
  constexpr const char* kOption = "checkpoint.initial_load_in_hf_quantized";
  const std::string path = (folder / "config.json").string();
  const std::optional<ScaleBlock> blocks = quantisation_of(read_settings_file(path), path);
  if (blocks && !is_expected) {
    throw Error(ExitCode::bad_config,
                fmt::format("{} says that its weights are quantised in blocks: set {} = true", path, kOption));
  }
  if (!blocks && is_expected) {
    throw Error(ExitCode::bad_config,
                fmt::format("{} says nothing of quantised weights (quantization_config): leave {} out", path, kOption));
  }
  return blocks;
}

HuggingFaceExport make_export(const JobConfig& config, const ModelRequest& request, int64_t step,
                              const std::string& run, std::vector<std::string>& notes) {
  HuggingFaceExport wanted;
  wanted.folder = fs::path(config.job.dump_folder) / config.checkpoint.folder / step_folder(step);
  wanted.run = run;
  wanted.step = step;
  wanted.replace = true;
  wanted.model = adapter_of(request).hugging_face(request);
  wanted.type = scalar_type_named(config.checkpoint.export_dtype);
  wanted.companions = make_companions(config, request, *wanted.type, notes);
  wanted.facts[kModelFacts] = model_facts(request);
  return wanted;
}

at::ScalarType scalar_type_named(const std::string& word) {
  return word == "float16" ? at::kHalf : word == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

}  // namespace titan
