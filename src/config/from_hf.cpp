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

namespace titan::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kKey = "model.from_hf";

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
  HuggingFaceConfig(Settings& settings, std::vector<Problem>& problems, std::vector<std::string>& notes)
      : settings_(settings), problems_(problems), notes_(notes), folder_(settings.get<std::string>(kKey)) {}

  void apply() {
    if (!read()) return;
    const HuggingFaceArchitecture* architecture = find_architecture();
    if (!architecture) return;
    json_ = with_architecture_defaults(json_);
    give("model.name", std::string(architecture->model_type));
    give("model.flavor", std::string("custom"));
    if (settings_.get<std::string>("model.name") != architecture->model_type) {
      problems_.push_back(
          settings_.origins().problem("model.name",
                                      fmt::format("model.name = \"{}\", and {} describes a {}",
                                                  settings_.get<std::string>("model.name"), file(), architecture->name),
                                      "leave model.name out"));
    }
    refuse_window();
    read_sizes();
    refuse_others();
    note_dropout();
    if (std::string_view(architecture->model_type) == "llama") note_window_of_llama();
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
      const std::string text = read_text_file(folder_ / "config.json", ExitCode::bad_config, kMostTomlBytes);
      json_ = parse_json(text, false);
    } catch (const Error& error) {
      problems_.push_back(settings_.origins().problem(kKey, fmt::format("model.from_hf: {}", error.what()),
                                                      "name a folder with a config.json"));
      return false;
    }
    if (!json_.is_object()) refuse("it is not a JSON object", "download it again");
    return json_.is_object();
  }

  const HuggingFaceArchitecture* find_architecture() {
    const Json named = json_.value("architectures", Json()), type = json_.value("model_type", Json());
    if (const HuggingFaceArchitecture* found = architecture_of(json_)) {
      if (type.is_null() || type == Json(found->model_type)) return found;
      // Neither is the right one: transformers goes by the first, other programs by the second.
      refuse(fmt::format("its model_type is {} and its architectures name {}", json_text(type), found->name),
             "make the two agree");
      return nullptr;
    }
    std::vector<std::string> known;
    for (const HuggingFaceArchitecture& one : hugging_face_architectures()) known.emplace_back(one.name);
    const bool is_named = named.is_array() && named.size() == 1 && named[0].is_string();
    refuse(fmt::format("it describes a {}", is_named           ? named[0].get<std::string>()
                                            : type.is_string() ? type.get<std::string>()
                                                               : "model without a name"),
           fmt::format("the models here are {}", join(known, ", ")));
    return nullptr;
  }

  /// A number of `from` above 0; anything else is a problem.
  std::optional<double> number(const Json& from, const char* key) {
    const auto found = from.find(key);
    if (found == from.end() || found->is_null()) {
      refuse(fmt::format("it has no {}", key), "download it again");
      return std::nullopt;
    }
    if (found->is_number() && std::isfinite(found->get<double>()) && found->get<double>() > 0) {
      return found->get<double>();
    }
    refuse(fmt::format("{} is {} and must be a number above 0", key, json_text(*found)), "download it again");
    return std::nullopt;
  }

  void give_count(const std::string& key, std::optional<double> value) {
    // No size of a model is larger, and the product of two of them fits in 64 bits.
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
    if (heads) give_count("model.override.n_kv_heads", number(json_, "num_key_value_heads"));
    if (width && heads) give_count("model.override.head_dim", number(json_, "head_dim"));
    give_count("model.override.hidden_dim", number(json_, "intermediate_size"));
    give_count("model.override.vocab_size", number(json_, "vocab_size"));
    give_count("model.max_seq_len", number(json_, "max_position_embeddings"));
    give_number("model.override.norm_eps", number(json_, "rms_norm_eps"));
    const Json& tied = json_["tie_word_embeddings"];
    if (!tied.is_boolean())
      return refuse(fmt::format("tie_word_embeddings is {}", json_text(tied)), "write true or false");
    give("model.override.embeddings", std::string(tied == Json(true) ? "tied" : "untied"));
  }

  void refuse_others() {
    const Json& activation = json_["hidden_act"];
    if (activation != Json("silu")) refuse(fmt::format("hidden_act is {}, and here it is silu", json_text(activation)));
    for (const char* key : {"attention_bias", "mlp_bias"}) {
      const Json bias = json_.value(key, Json(false));
      if (bias != Json(false)) refuse(fmt::format("{} is {}, and here it is false", key, json_text(bias)));
    }
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (json_.contains(key) && !json_[key].is_null()) refuse(fmt::format("{}: there are no experts here", key));
    }
    const Json layers = json_.value("per_layer_config", Json());
    if (!layers.empty()) refuse("per_layer_config: all layers here are alike");
    if (const Json causal = json_.value("is_causal", Json(true)); causal == Json(false)) {
      refuse("is_causal is false, and here no token attends to later ones");
    }
    const Json types = json_.value("layer_types", Json());
    if (!types.is_array()) return;
    if (const Json& count = json_["num_hidden_layers"]; count.is_number() && count != Json(types.size())) {
      return refuse(
          fmt::format("layer_types names {} layers, and num_hidden_layers is {}", types.size(), json_text(count)),
          "make the two agree");
    }
    const bool slides = sliding_window(json_).is_number();
    for (const Json& type : types) {
      if (type == Json("full_attention") || (slides && type == Json("sliding_attention"))) continue;
      return refuse(fmt::format("layer_types names {}, and every layer here has full attention", json_text(type)));
    }
  }

  /// Dropout does not change what a trained model computes, so the model is read. Training it differs from
  /// transformers.
  void note_dropout() {
    const Json dropout = json_.value("attention_dropout", Json());
    if (dropout.is_null() || dropout == Json(0)) return;
    notes_.push_back(format_problem(settings_.origins().note(
        kKey,
        fmt::format("{}: attention_dropout is {}, which transformers applies in training", file(), json_text(dropout)),
        "here no attention weight is dropped")));
  }

  /// sliding_window() is null for it, because the forward pass of transformers' class does not read the key.
  void note_window_of_llama() {
    const Json window = json_.value("sliding_window", Json());
    if (!window.is_number()) return;
    notes_.push_back(format_problem(settings_.origins().note(
        kKey,
        fmt::format("{}: sliding_window is {}: the forward pass of transformers' Llama ignores it, and its generate() "
                    "keeps only that many tokens",
                    file(), json_text(window)),
        "here every token sees all before it, in training and in generate")));
  }

  void refuse_window() {
    const Json window = sliding_window(json_);
    const int64_t length = settings_.get<int64_t>("training.seq_len");
    if (!window.is_number()) return;
    // A window that no sequence exceeds masks nothing, so the model is computed without one; longer texts are refused.
    if (window.get<double>() >= static_cast<double>(length)) {
      const Json& longest = json_["max_position_embeddings"];
      if (!longest.is_number()) return;  // the check of sizes reports it, with all others
      return give_count("model.max_seq_len", std::min(longest.get<double>(), window.get<double>()));
    }
    refuse(fmt::format("sliding_window is {}, below training.seq_len = {}", json_text(window), length),
           "shorten the sequences to the window (training.seq_len; --context or --window of a command): within it "
           "nothing slides");
  }

  void read_rotary() {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const Json settings = json_.value(key, Json());
      if (settings.is_null() || settings.is_object()) continue;
      return refuse(fmt::format("{} is {}, and it must be a JSON object", key, json_text(settings)),
                    "download it again");
    }
    const Json rotary = rotary_settings(json_);
    if (rotary["rope_type"] == kRotaryByLayerType) {
      return refuse(
          "it has rotary settings by layer type that differ from layer type to layer type or that transformers does "
          "not read for this model, and here all layers have the same");
    }
    give_number("model.override.rope_theta", number(rotary, "rope_theta"));
    if (const Json& share = rotary["partial_rotary_factor"]; share != Json(1.0)) {
      refuse(fmt::format("partial_rotary_factor is {}, and here the whole of every head turns", json_text(share)));
    }
    const Json& type = rotary["rope_type"];
    const std::string name = type.is_string() ? type.get<std::string>() : json_text(type);
    using Kind = RotaryScaling::Kind;
    struct Known {
      const char* type;
      const char* option;
      std::optional<Kind> kind;
    };
    const std::array<Known, 5> known{{{"default", "none", {}},
                                      {"llama3", "llama3_1", Kind::llama3},
                                      {"linear", "linear", Kind::linear},
                                      {"dynamic", "dynamic", Kind::dynamic},
                                      {"yarn", "yarn", Kind::yarn}}};
    const auto found = std::find_if(known.begin(), known.end(), [&](const Known& one) { return name == one.type; });
    if (found == known.end()) {
      refuse(fmt::format("rope_type is \"{}\"", name), "the scalings here are default, llama3, linear, dynamic, yarn");
      return;
    }
    give("model.rope_scaling", std::string(found->option));
    if (!found->kind) return;
    visit_rotary_numbers(*found->kind, [&](const char* option, const char* key, auto member) {
      const std::string name = std::string("model.override.") + option;
      if constexpr (std::is_same_v<decltype(member), int64_t RotaryScaling::*>) {
        give_count(name, number(rotary, key));
      } else {
        give_number(name, number(rotary, key));
      }
    });
    if (found->kind == Kind::yarn && rotary.value("truncate", Json(true)) != Json(true)) {
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
    if (has_file(folder_, {"adapter_config.json"})) {
      problems_.push_back(settings_.origins().problem(
          kKey,
          fmt::format(
              "model.from_hf: {} holds an adapter of PEFT (adapter_config.json), which transformers adds to the "
              "weights and which is not read here",
              folder_.string()),
          "merge it (merge_and_unload, then save_pretrained), or move its files away to take the weights without it"));
      return;
    }
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
    if (const std::string method = unreadable_quantisation(json_); !method.empty()) {
      problems_.push_back(
          settings_.origins().problem(kKey,
                                      fmt::format("model.from_hf: the weights of {} are quantised by {}; only fp8 "
                                                  "(e4m3) with a weight_block_size can be read",
                                                  folder_.string(), method),
                                      "take the weights that were not quantised"));
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
    if (!json_.value("quantization_config", Json()).is_null()) give("checkpoint.initial_load_in_hf_quantized", true);
  }

  Settings& settings_;
  std::vector<Problem>& problems_;
  std::vector<std::string>& notes_;
  fs::path folder_;
  Json json_;
};

}  // namespace

void apply_hugging_face_config(Settings& settings, std::vector<Problem>& problems, std::vector<std::string>& notes) {
  if (!settings.get<std::string>(kKey).empty()) HuggingFaceConfig(settings, problems, notes).apply();
}

}  // namespace titan::detail
