#include "tokenizer_settings.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "hugging_face_tokenizer.h"
#include "titan/base/error.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Class = TokenizerSettings::Class;
using Named = TokenizerSettings::Named;

constexpr std::string_view kDamagedSettings = "The file may be damaged: get it again.";
constexpr std::array kSpecialKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

/// The class of each model (transformers' tokenization_auto.py), as far as models are decoders of text. kGenericClass
/// counts whatever the files name, since many published ones name another.
struct ModelClass {
  std::string_view name;
  std::string_view models;  // each between spaces
};
constexpr std::array kModelClasses = {
    ModelClass{kGenericClass,
               " arctic ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite gpt_bigcode granite granitemoe "
               "granitemoehybrid granitemoeshared hyperclovax internlm2 internlm3 iquestcoder jamba kimi_linear "
               "mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mistral3 mixtral nemotron olmo2 olmo3 "
               "olmo_hybrid persimmon phi3 phimoe stablelm "},
    ModelClass{"Qwen2Tokenizer", " qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next "},
    ModelClass{"GPT2Tokenizer", " codegen dbrx emu3 gpt2 gpt_neo gptj jais2 opt phi starcoder2 "},
    ModelClass{"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    ModelClass{"GemmaTokenizer", " gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma zaya "},
    ModelClass{"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text "},
    ModelClass{"CohereTokenizer", " cohere cohere2 "},
};

/// transformers takes the model's class for these, too: their published files name another.
constexpr std::array kMisnamed = {"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"};

std::string_view class_of_model(const std::string& type) {
  if (type.empty() || type.find(' ') != type.npos) return {};
  for (const ModelClass& each : kModelClasses) {
    if (each.models.find(" " + type + " ") != std::string_view::npos) return each.name;
  }
  return {};
}

constexpr auto is_listed = [](const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
};

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

Class class_named(const std::string& name) {
  if (name == "LlamaTokenizer") return Class::llama;
  if (name == "Qwen2Tokenizer") return Class::qwen2;
  if (name == "GPT2Tokenizer") return Class::gpt2;
  if (name == "GPTNeoXTokenizer") return Class::gpt_neox;
  const bool generic = is_listed(
      std::array{"", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "MistralCommonBackend"}, name);
  return generic ? Class::backend : Class::other;
}

/// The files of one folder, and what they become in the settings.
class SettingsReader {
 public:
  SettingsReader(const fs::path& folder, const std::optional<JsonNode>& file) : file_(file) {
    load(folder / "tokenizer_config.json", config_);
    load(folder / "special_tokens_map.json", map_);
    load(folder / "added_tokens.json", list_);
    settings_.any = config_ || map_ || list_;
    read_model(folder / "config.json");
  }

  TokenizerSettings read() {
    choose_class();
    settings_.add_prefix_space = settings_.reader == Class::llama;  // also without a tokenizer_config.json
    if (config_) read_config();
    const bool lists = config_ && config_->find("added_tokens_decoder");
    lists ? read_decoder() : read_former_files();
    add_defaults();
    std::unordered_map<std::string_view, const AddedToken*> added;
    for (const auto& [id, token] : settings_.added) added[token.content] = &token;
    for (Named& named : settings_.named) {
      if (auto found = added.find(named.token.content); found != added.end()) named.token = *found->second;
    }
    return std::move(settings_);
  }

 private:
  void load(const fs::path& path, std::optional<JsonNode>& node) {
    if (!fs::exists(path)) return;  // not is_regular_file: read_json_file says what is wrong with a pipe or a folder
    documents_.push_back(std::make_unique<nlohmann::json>(read_json_file(path)));
    node.emplace(*documents_.back(), path);
    if (!documents_.back()->is_object()) node->fail(fmt::format("is not an object. {}", kDamagedSettings));
  }

  /// Another part reads the model's config.json and says what is wrong with it.
  void read_model(const fs::path& path) {
    if (!fs::is_regular_file(path)) return;
    try {
      const nlohmann::json json = read_json_file(path);
      if (!json.is_object()) return;
      if (auto type = json.find("model_type"); type != json.end() && type->is_string()) model_type_ = *type;
      if (auto name = json.find("tokenizer_class"); name != json.end() && name->is_string()) model_class_ = *name;
    } catch (const Error&) {
    }
  }

  void choose_class() {
    std::string name;
    if (std::optional<JsonNode> field = config_ ? config_->find("tokenizer_class") : std::nullopt) name = field->text();
    if (name.empty()) name = model_class_;
    name = without_fast(name);
    const std::string_view of_model = class_of_model(model_type_);
    const bool model_decides = of_model == kGenericClass || name.empty() || is_listed(kMisnamed, model_type_);
    if (!of_model.empty() && model_decides) name = of_model;
    settings_.class_name = name;
    settings_.reader = class_named(name);
    // Many byte-level tokenizers name the class of the first Llama's by mistake.
    if (settings_.reader == Class::llama && file_ && file_->value().dump().find("\"ByteLevel\"") != std::string::npos) {
      settings_.reader = Class::backend;
    }
  }

  void read_config() {
    const JsonNode& config = *config_;
    settings_.split_special_tokens = config.flag("split_special_tokens", false);
    settings_.add_prefix_space = config.flag("add_prefix_space", settings_.add_prefix_space);
    if (config.value().contains("legacy")) settings_.legacy = config.flag("legacy", false);  // null is false
    if (!file_) {  // a tokenizer.json has a post-processor, which decides instead
      settings_.add_bos = config.flag("add_bos_token", false);
      settings_.add_eos = config.flag("add_eos_token", false);
      if (std::optional<JsonNode> code = config.find("auto_map")) {
        settings_.needs_code = !code->value().is_object() || code->find("AutoTokenizer").has_value();
      }
    }
    for (const auto& [key, value] : config.value().items()) {
      const bool known = is_listed(kSpecialKeys, key);
      if (value.is_null() && known) settings_.none.push_back(key);
      if (!key.ends_with("_token") || !(value.is_string() || value.is_object())) continue;
      set(key, special_token(*config.find(key))).is_object = value.is_object();
    }
    std::optional<JsonNode> list = config.find("extra_special_tokens");
    const bool has_former = config.value().contains("additional_special_tokens");
    if (has_former && (!list || list->value().empty())) list = config.find("additional_special_tokens");
    if (list) {
      read_extra(*list);
    } else {  // null is an empty list, not a missing one
      settings_.names_extra = has_former || config.value().contains("extra_special_tokens");
    }
  }

  /// A string, or an object with flags.
  static AddedToken special_token(const JsonNode& node) {
    if (node.value().is_object()) return read_added_token(node);
    AddedToken token;
    token.content = node.text();
    token.normalized = false;
    token.special = true;
    return token;
  }

  /// A stranger's file may name any number of tokens, so they are looked up by key and not one after another.
  Named& set(const std::string& key, AddedToken token) {
    std::erase(settings_.none, key);
    const auto [place, is_new] = named_by_key_.try_emplace(key, settings_.named.size());
    if (is_new) settings_.named.push_back({key, {}});
    Named& named = settings_.named[place->second];
    named.token = std::move(token);
    named.is_object = false;
    return named;
  }

  /// Null if no file has named a token `key`.
  const Named* named(const std::string& key) const {
    auto found = named_by_key_.find(key);
    return found == named_by_key_.end() ? nullptr : &settings_.named[found->second];
  }

  void read_extra(const JsonNode& list) {
    settings_.names_extra = list.value().is_array();
    if (list.value().is_object()) {
      for (const auto& [key, value] : list.value().items()) set(key, special_token(*list.find(key)));
      return;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      AddedToken token = special_token(list.at(i));
      if (seen_extra_.insert(token).second) settings_.extra.push_back(std::move(token));
    }
  }

  /// The newer form: added_tokens_decoder alone counts.
  void read_decoder() {
    settings_.lists_added = true;
    const JsonNode decoder = *config_->find("added_tokens_decoder");
    if (!decoder.value().is_object()) decoder.fail(fmt::format("is not an object. {}", kDamagedSettings));
    std::map<int32_t, AddedToken> tokens;
    for (const auto& [key, value] : decoder.value().items()) {
      int32_t id = 0;
      auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (problem != std::errc() || end != key.data() + key.size() || id < 0 || id >= HuggingFaceModel::kMostIds) {
        decoder.fail(fmt::format("has the key \"{}\", which is not an id. {}", key, kDamagedSettings));
      }
      const JsonNode node(value, decoder.file(), fmt::format("added_tokens_decoder.{}", key));
      tokens[id] = read_added_token(node);
    }
    settings_.added.assign(tokens.begin(), tokens.end());
    compare_with_former_files();
  }

  void notice(const fs::path& other, std::string_view what) {
    settings_.notices.push_back(
        fmt::format("{}: {} is not used, since tokenizer_config.json beside it has "
                    "added_tokens_decoder; transformers does the same",
                    other.string(), what));
  }

  /// Says what the files that do not count would have changed.
  void compare_with_former_files() {
    if (map_) {
      for (const char* key : {"bos_token", "eos_token"}) {
        const std::optional<JsonNode> field = map_->find(key);
        const Named* of_config = named(key);
        if (!field || (of_config && of_config->token.content == special_token(*field).content)) continue;
        notice(map_->file(), fmt::format("its {} \"{}\"", key, special_token(*field).content));
      }
    }
    if (!list_) return;
    std::set<std::pair<std::string_view, int32_t>> added;
    for (const auto& [id, token] : settings_.added) added.emplace(token.content, id);
    for (const auto& [content, id] : list_->value().items()) {
      const bool is_id = id.is_number_integer() && id >= 0 && id < HuggingFaceModel::kMostIds;
      if (is_id && added.contains({content, id.get<int32_t>()})) continue;
      notice(list_->file(), fmt::format("its token \"{}\"", content));
      return;
    }
  }

  /// The form before added_tokens_decoder: special_tokens_map.json overrides the config, added_tokens.json and the
  /// tokenizer.json list the tokens.
  void read_former_files() {
    if (map_) read_map();
    std::map<int32_t, AddedToken> tokens;
    if (list_) {
      const std::unordered_set<std::string_view> special = special_contents();
      for (const auto& [content, value] : list_->value().items()) {
        AddedToken token;
        token.content = content;
        token.special = special.contains(content);
        token.normalized = !token.special;
        tokens[token_id_in(JsonNode(value, list_->file(), fmt::format("\"{}\"", content)))] = std::move(token);
      }
    }
    const std::optional<JsonNode> own = file_ ? file_->find("added_tokens") : std::nullopt;
    for (size_t i = 0; own && i < own->size(); ++i) {
      const JsonNode node = own->at(i);
      tokens[token_id_in(node.at("id"))] = read_added_token(node);
    }
    settings_.added.assign(tokens.begin(), tokens.end());
  }

  /// transformers compares with the text of the named tokens before it has read those with flags.
  std::unordered_set<std::string_view> special_contents() const {
    std::unordered_set<std::string_view> special;
    for (const Named& named : settings_.named) {
      if (is_listed(kSpecialKeys, named.key) && !named.is_object) special.insert(named.token.content);
    }
    for (const AddedToken& token : settings_.extra) special.insert(token.content);
    return special;
  }

  void read_map() {
    for (const auto& [key, value] : map_->value().items()) {
      const bool former = key == "additional_special_tokens" && !settings_.names_extra;
      if (value.is_null() && key == "extra_special_tokens") {
        settings_.extra.clear();  // also those of the config
        seen_extra_.clear();
        settings_.names_extra = true;
        settings_.former_extra = false;
      }
      if (!value.is_null() && (former || key == "extra_special_tokens")) {
        read_extra(*map_->find(key));
        settings_.former_extra = former;
      }
      if (!key.ends_with("_token") || !(value.is_string() || value.is_object())) continue;
      AddedToken token = special_token(*map_->find(key));
      token.make_special();
      const Named* before = named(key);
      if (before && before->token.content != token.content) {
        settings_.notices.push_back(
            fmt::format("{}: its {} \"{}\" is used, not \"{}\" of tokenizer_config.json beside it; transformers reads "
                        "it so, too",
                        map_->file().string(), key, token.content, before->token.content));
      }
      set(key, std::move(token));
    }
  }

  /// The special tokens that the class has unless a file says otherwise.
  void add_defaults() {
    using Defaults = std::vector<std::pair<const char*, const char*>>;
    Defaults defaults;
    if (settings_.reader == Class::llama)
      defaults = {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    const char* end = "<|endoftext|>";
    if (settings_.reader == Class::qwen2) defaults = {{"unk_token", end}, {"eos_token", end}, {"pad_token", end}};
    if (settings_.reader == Class::gpt2) defaults = {{"unk_token", end}, {"bos_token", end}, {"eos_token", end}};
    if (settings_.reader == Class::gpt_neox) {
      defaults = {{"unk_token", end}, {"bos_token", end}, {"eos_token", end}, {"pad_token", "<|padding|>"}};
    }
    for (const auto& [key, content] : defaults) settings_.add_default(key, content);
    const auto place = [](const Named& named) {
      return std::find(kSpecialKeys.begin(), kSpecialKeys.end(), named.key) - kSpecialKeys.begin();
    };
    std::stable_sort(settings_.named.begin(), settings_.named.end(),
                     [&](const Named& a, const Named& b) { return place(a) < place(b); });
  }

  std::vector<std::unique_ptr<nlohmann::json>> documents_;
  std::optional<JsonNode> config_, map_, list_;
  const std::optional<JsonNode>& file_;
  std::string model_type_, model_class_;
  std::unordered_map<std::string, size_t> named_by_key_;  // indices of settings_.named
  std::set<AddedToken> seen_extra_;                       // what settings_.extra has
  TokenizerSettings settings_;
};

}  // namespace

const Named* TokenizerSettings::find(const std::string& key) const {
  auto found = std::find_if(named.begin(), named.end(), [&](const Named& one) { return one.key == key; });
  return found == named.end() ? nullptr : &*found;
}

void TokenizerSettings::add_default(const std::string& key, const std::string& content) {
  if (find(key) || std::find(none.begin(), none.end(), key) != none.end()) return;
  AddedToken token;
  token.content = content;
  token.normalized = false;
  token.special = true;
  named.push_back({key, std::move(token), /*by_default=*/true});
}

int32_t token_id_in(const JsonNode& node) {
  const int64_t id = node.number();
  if (id < 0 || id >= HuggingFaceModel::kMostIds) {
    node.fail(fmt::format("is {}; ids are 0 to {}. {}", id, HuggingFaceModel::kMostIds - 1, kDamagedSettings));
  }
  return static_cast<int32_t>(id);
}

AddedToken read_added_token(const JsonNode& node) {
  AddedToken token;
  token.content = node.text("content");
  token.special = node.flag("special", false);
  token.single_word = node.flag("single_word", false);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  token.says_normalized = node.find("normalized").has_value();
  token.normalized = node.flag("normalized", !token.special);
  return token;
}

TokenizerSettings read_tokenizer_settings(const fs::path& folder, const std::optional<JsonNode>& file) {
  return SettingsReader(folder, file).read();
}

}  // namespace titan
