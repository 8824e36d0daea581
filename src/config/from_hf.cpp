// model.from_hf: converts the config.json of a Hugging Face folder to option values. Reports each unsupported setting
// by name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "given.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/config/hugging_face_settings.h"

namespace titan {

namespace {

/// A member that is not null; null if there is none.
nlohmann::json member_of(const nlohmann::json& object, const char* key) {
  return object.is_object() ? object.value(key, nlohmann::json()) : nlohmann::json();
}

/// The dictionary with the rotary settings, as transformers 5 finds it: rope_scaling counts if it holds anything. A
/// dictionary per layer type is that of all layers if they agree.
nlohmann::json rotary_dictionary(const nlohmann::json& config) {
  using Json = nlohmann::json;
  const Json scaling = member_of(config, "rope_scaling");
  Json read = scaling.is_object() && !scaling.empty() ? scaling : member_of(config, "rope_parameters");
  if (!read.is_object()) return Json::object();
  std::vector<Json> by_type;
  for (const auto& [key, value] : read.items()) {
    if (value.is_object() || (value.is_null() && key.ends_with("_attention"))) by_type.push_back(value);
  }
  if (by_type.empty()) return read;
  const bool agree = std::all_of(by_type.begin(), by_type.end(), [&](const Json& one) { return one == by_type[0]; });
  if (!agree || by_type[0].is_null()) return {{"rope_type", kRotaryByLayerType}};
  return by_type[0];
}

}  // namespace

nlohmann::json rotary_settings(const nlohmann::json& config) {
  using Json = nlohmann::json;
  Json read = rotary_dictionary(config);
  const auto usual = [&read](const char* key, const Json& value) {
    if (read.value(key, Json()).is_null()) read[key] = value;
  };
  usual("rope_theta", member_of(config, "rope_theta"));
  usual("rope_theta", 10000.0);
  usual("rope_type", read.value("type", Json("default")));
  usual("partial_rotary_factor", member_of(config, "partial_rotary_factor"));
  usual("partial_rotary_factor", 1.0);
  const Json longest = config.value("max_position_embeddings", Json(2048));
  if (read["rope_type"] == "dynamic") read["original_max_position_embeddings"] = longest;
  if (read["rope_type"] != "yarn" && read["rope_type"] != "llama3") return read;
  const Json original = member_of(config, "original_max_position_embeddings");
  if (!original.is_null()) read["original_max_position_embeddings"] = original;
  usual("original_max_position_embeddings", longest);
  if (read["rope_type"] == "llama3") return read;
  usual("beta_fast", 32.0);
  usual("beta_slow", 1.0);
  const auto value = [&read](const char* key) {
    const Json found = read.value(key, Json());
    return found.is_number() ? found.get<double>() : 0.0;
  };
  const double factor = value("factor"), share = value("mscale"), all = value("mscale_all_dim");
  const auto grown = [&](double by) { return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1.0; };
  usual("attention_factor", share != 0 && all != 0 ? grown(share) / grown(all) : grown(1.0));
  return read;
}

nlohmann::json sliding_window(const nlohmann::json& config) {
  using Json = nlohmann::json;
  const bool is_mistral = config.value("model_type", Json()) == "mistral" ||
                          config.value("architectures", Json()) == Json::array({"MistralForCausalLM"});
  if (!is_mistral && config.value("use_sliding_window", Json()) != Json(true)) return nullptr;
  return config.value("sliding_window", Json(4096));
}

}  // namespace titan

namespace titan::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kKey = "model.from_hf";

struct Architecture {
  const char* theirs;
  const char* model_type;
  const char* ours;
};
constexpr std::array<Architecture, 4> kArchitectures{{{"LlamaForCausalLM", "llama", "llama"},
                                                      {"MistralForCausalLM", "mistral", "mistral"},
                                                      {"Qwen2ForCausalLM", "qwen2", "qwen2"},
                                                      {"Qwen3ForCausalLM", "qwen3", "qwen3"}}};

bool has_file(const fs::path& folder, std::initializer_list<const char*> names) {
  std::error_code unknown;
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return fs::is_regular_file(folder / name, unknown); });
}

/// The first file with one of these suffixes; empty: none.
std::string find_ending(const fs::path& folder, std::initializer_list<const char*> endings) {
  std::error_code unknown;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unknown)) {
    for (const char* ending : endings) {
      if (entry.path().extension() == ending) return entry.path().filename().string();
    }
  }
  return {};
}

class HuggingFaceConfig {
 public:
  HuggingFaceConfig(Settings& settings, std::vector<Problem>& problems)
      : settings_(settings), problems_(problems), folder_(settings.get<std::string>(kKey)) {}

  void apply() {
    if (!read()) return;
    const Architecture* architecture = find_architecture();
    if (!architecture) return;
    give("model.name", std::string(architecture->ours));
    give("model.flavor", std::string("custom"));
    if (settings_.get<std::string>("model.name") != architecture->ours) {
      problems_.push_back(settings_.origins().problem(
          "model.name",
          fmt::format("model.name = \"{}\", and {} describes a {}", settings_.get<std::string>("model.name"), file(),
                      architecture->theirs),
          "leave model.name out"));
    }
    refuse_window();
    read_sizes();
    refuse_others();
    read_rotary();
    find_files();
  }

 private:
  std::string file() const { return (folder_ / "config.json").string(); }

  void refuse(std::string what, std::string remedy = "take another model") {
    problems_.push_back(settings_.origins().problem(kKey, fmt::format("{}: {}", file(), what), std::move(remedy)));
  }

  /// Overrides values of lower levels, but not the user's own value at the same level.
  void give(const std::string& key, Value value) {
    const Level level = settings_.level(kKey);
    if (settings_.level(key) >= level) return;
    settings_.set(key, std::move(value), level, settings_.origins().place(kKey), kKey);
  }

  bool read() {
    std::error_code unknown;
    if (!fs::is_directory(folder_, unknown)) {
      problems_.push_back(
          settings_.origins().problem(kKey, fmt::format("model.from_hf: {} is not a folder", folder_.string()),
                                      "name a folder with a config.json, as huggingface_hub's download leaves it"));
      return false;
    }
    try {
      const std::string text = read_file(folder_ / "config.json", ExitCode::bad_config, kMostTomlBytes);
      refuse_kind(kind_of(text), folder_ / "config.json", ExitCode::bad_config);
      json_ = parse_json(text, false);
    } catch (const Error& error) {
      problems_.push_back(settings_.origins().problem(kKey, fmt::format("model.from_hf: {}", error.what()),
                                                      "name a folder with a config.json"));
      return false;
    }
    if (!json_.is_object()) refuse("it is not a JSON object", "download it again");
    return json_.is_object();
  }

  const Architecture* find_architecture() {
    const Json named = json_.value("architectures", Json());
    const std::string theirs =
        named.is_array() && named.size() == 1 && named[0].is_string() ? named[0].get<std::string>() : std::string();
    const Json type = json_.value("model_type", Json());
    const bool by_type = named.is_null() || named == Json::array();
    for (const Architecture& one : kArchitectures) {
      if (theirs == one.theirs || (by_type && type == Json(one.model_type))) return &one;
    }
    std::vector<std::string> known;
    for (const Architecture& one : kArchitectures) known.emplace_back(one.theirs);
    refuse(fmt::format("it describes a {}", !theirs.empty()    ? theirs
                                            : type.is_string() ? type.get<std::string>()
                                                               : "model without a name"),
           fmt::format("the models here are {}", join(known, ", ")));
    return nullptr;
  }

  /// A number of `from`; `absent` if it is null or missing; anything else is a problem.
  std::optional<double> number(const Json& from, const char* key, std::optional<double> absent = {}) {
    const auto found = from.find(key);
    if (found == from.end() || found->is_null()) {
      if (!absent) refuse(fmt::format("it has no {}", key), "download it again");
      return absent;
    }
    if (found->is_number() && std::isfinite(found->get<double>()) && found->get<double>() > 0) {
      return found->get<double>();
    }
    refuse(fmt::format("{} is {} and must be a number above 0", key, found->dump()), "download it again");
    return std::nullopt;
  }

  void give_count(const std::string& key, std::optional<double> value) {
    constexpr double kMost = 1 << 30;
    if (value && *value <= kMost && *value == std::floor(*value)) return give(key, static_cast<int64_t>(*value));
    if (value) refuse(fmt::format("{} for {} is not a count", *value, key), "download it again");
  }
  void give_number(const std::string& key, std::optional<double> value) {
    if (value) give(key, *value);
  }

  void read_sizes() {
    const std::optional<double> width = number(json_, "hidden_size"), heads = number(json_, "num_attention_heads");
    give_count("model.override.dim", width);
    give_count("model.override.n_layers", number(json_, "num_hidden_layers"));
    give_count("model.override.n_heads", heads);
    give_count("model.override.n_kv_heads", number(json_, "num_key_value_heads", heads.value_or(1)));
    if (width && heads) {
      give_count("model.override.head_dim", number(json_, "head_dim", std::floor(*width / *heads)));
    }
    give_count("model.override.hidden_dim", number(json_, "intermediate_size"));
    give_count("model.override.vocab_size", number(json_, "vocab_size"));
    give_count("model.max_seq_len", number(json_, "max_position_embeddings", 2048));
    give_number("model.override.norm_eps", number(json_, "rms_norm_eps", 1e-6));
    const bool tied = json_.value("tie_word_embeddings", Json(false)) == Json(true);
    give("model.override.embeddings", std::string(tied ? "tied" : "untied"));
  }

  void refuse_others() {
    const Json activation = json_.value("hidden_act", Json("silu"));
    if (activation != Json("silu")) refuse(fmt::format("hidden_act is {}, and here it is silu", activation.dump()));
    for (const char* key : {"attention_bias", "mlp_bias"}) {
      if (json_.value(key, Json(false)) == Json(true)) refuse(fmt::format("{} is true, and here it is false", key));
    }
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (json_.contains(key) && !json_[key].is_null()) refuse(fmt::format("{}: there are no experts here", key));
    }
  }

  void refuse_window() {
    const Json window = sliding_window(json_);
    const int64_t length = settings_.get<int64_t>("training.seq_len");
    if (!window.is_number()) return;
    if (window.get<double>() >= static_cast<double>(length)) {  // limits the sequence length to the window
      const Json longest = json_.value("max_position_embeddings", Json(2048));
      return give_count("model.max_seq_len",
                        std::min(longest.is_number() ? longest.get<double>() : 2048.0, window.get<double>()));
    }
    refuse(fmt::format("sliding_window is {}, below training.seq_len = {}", window.dump(), length),
           "shorten the sequences to the window (training.seq_len; --context or --window of a command): within it "
           "nothing slides");
  }

  void read_rotary() {
    const Json rotary = rotary_settings(json_);
    if (rotary["rope_type"] == kRotaryByLayerType) {
      return refuse("its rotary settings differ from layer type to layer type, and here all layers have the same");
    }
    give_number("model.override.rope_theta", number(rotary, "rope_theta"));
    if (const Json& share = rotary["partial_rotary_factor"]; share != Json(1.0)) {
      refuse(fmt::format("partial_rotary_factor is {}, and here the whole of every head turns", share.dump()));
    }
    const Json& type = rotary["rope_type"];
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    const std::array<std::pair<const char*, const char*>, 5> known{
        {{"default", "none"}, {"llama3", "llama3_1"}, {"linear", "linear"}, {"dynamic", "dynamic"}, {"yarn", "yarn"}}};
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto& one) { return name == one.first; });
    if (found == known.end()) {
      refuse(fmt::format("rope_type is \"{}\"", name), "the scalings here are default, llama3, linear, dynamic, yarn");
      return;
    }
    give("model.rope_scaling", std::string(found->second));
    if (name == "default") return;
    const std::optional<double> factor = number(rotary, "factor");
    give_number("model.override.rope_factor", factor);
    if (name != "linear") {
      give_count("model.override.rope_original_context", number(rotary, "original_max_position_embeddings"));
    }
    if (name == "llama3") {
      give_number("model.override.rope_low_freq_factor", number(rotary, "low_freq_factor"));
      give_number("model.override.rope_high_freq_factor", number(rotary, "high_freq_factor"));
    }
    if (name != "yarn" || !factor) return;
    give_number("model.override.rope_beta_fast", number(rotary, "beta_fast"));
    give_number("model.override.rope_beta_slow", number(rotary, "beta_slow"));
    give_number("model.override.rope_attention_factor", number(rotary, "attention_factor"));
    if (rotary.value("truncate", Json(true)) != Json(true)) {
      refuse("truncate is false, and here the limits of yarn's ramp are whole numbers");
    }
  }

  /// Finds the folder's tokenizer and weights, if any.
  void find_files() {
    if (has_file(folder_, {"tokenizer.json", "tokenizer.model", "vocab.json"})) {
      give("model.tokenizer_path", folder_.string());
    }
    const bool names_weights = settings_.level("checkpoint.initial_load_path") >= settings_.level(kKey);
    if (names_weights) return;
    if (find_ending(folder_, {".safetensors"}).empty()) {
      const std::string other = find_ending(folder_, {".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack"});
      if (other.empty()) return;
      problems_.push_back(settings_.origins().problem(
          kKey,
          fmt::format("model.from_hf: the weights of {} are in {}, and safetensors are read", folder_.string(), other),
          "take the model's safetensors (save_pretrained of transformers writes them), or give "
          "checkpoint.initial_load_path"));
      return;
    }
    if (settings_.is_set("checkpoint.enable") && !settings_.get<bool>("checkpoint.enable")) {
      problems_.push_back(settings_.origins().problem(
          "checkpoint.enable",
          fmt::format("checkpoint.enable = false, and the weights of {} would not be read", folder_.string()),
          "leave it out (weights are then read and none are saved), or set it to true"));
      return;
    }
    if (!settings_.is_set("checkpoint.enable")) {
      give("checkpoint.enable", true);
      give("checkpoint.load_only", true);
    }
    give("checkpoint.initial_load_path", folder_.string());
    give("checkpoint.initial_load_in_hf", true);
    if (json_.contains("quantization_config")) give("checkpoint.initial_load_in_hf_quantized", true);
  }

  Settings& settings_;
  std::vector<Problem>& problems_;
  fs::path folder_;
  Json json_;
};

}  // namespace

void apply_hugging_face_config(Settings& settings, std::vector<Problem>& problems) {
  if (!settings.get<std::string>(kKey).empty()) HuggingFaceConfig(settings, problems).apply();
}

}  // namespace titan::detail
