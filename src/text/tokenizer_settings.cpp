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
#include "titan/base/file_kind.h"
#include "titan/base/json.h"
#include "titan/base/ordered_json.h"
#include "tokenizer_class.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Class = TokenizerSettings::Class;
using Named = TokenizerSettings::Named;

constexpr std::string_view kDamagedSettings = "The file may be damaged: get it again.";
constexpr std::array kSpecialKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

constexpr auto is_listed = [](const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
};

Class class_named(const std::string& name) {
  if (name == "LlamaTokenizer") return Class::llama;
  if (name == "Qwen2Tokenizer") return Class::qwen2;
  if (name == "GPT2Tokenizer") return Class::gpt2;
  if (name == "GPTNeoXTokenizer") return Class::gpt_neox;
  const bool generic = is_listed(
      std::array{"", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "MistralCommonBackend"}, name);
  return generic ? Class::backend : Class::other;
}

/// The newest of `files` that transformers reads: tokenizer.4.0.0.json holds for that version of it and later ones. It
/// goes through the versions in the order of texts until one is newer than itself.
std::string newest_tokenizer_file(const JsonNode& files) {
  constexpr std::string_view kBefore = "tokenizer.", kAfter = ".json";
  std::map<std::string, std::string> by_version;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.at(i).text();
    const size_t begin = name.find(kBefore), end = name.rfind(kAfter);
    if (begin == name.npos || end == name.npos || end < begin + kBefore.size()) continue;
    by_version[name.substr(begin + kBefore.size(), end - begin - kBefore.size())] = name;
  }
  std::string newest = "tokenizer.json";
  for (const auto& [version, name] : by_version) {
    std::pair<int, int> parts;  // major and minor version
    const char* end = version.data() + version.size();
    const auto [after, problem] = std::from_chars(version.data(), end, parts.first);
    if (problem != std::errc())
      files.fail(fmt::format("names {}, whose version is not a number. {}", name, kDamagedSettings));
    if (after != end && *after == '.') std::from_chars(after + 1, end, parts.second);
    if (parts > std::pair(kTransformersMajor, kTransformersMinor)) break;
    newest = name;
  }
  return newest;
}

/// The files of one folder, and what they become in the settings.
class SettingsReader {
 public:
  SettingsReader(const fs::path& folder, const std::optional<JsonNode>& file) : file_(file) {
    load(folder / "tokenizer_config.json", config_, &config_order_);
    load(folder / "special_tokens_map.json", map_, &map_order_);
    load(folder / "added_tokens.json", list_);
    settings_.any = config_ || map_ || list_;
    model_file_ = folder / "config.json";
    model_ = read_model_config(model_file_);
  }

  TokenizerSettings read() {
    choose_class();
    settings_.add_prefix_space = settings_.reader == Class::llama;  // also without a tokenizer_config.json
    if (config_) read_config();
    settings_.mistral_regex = mistral_regex();
    const bool lists = config_ && config_->value().contains("added_tokens_decoder");
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
  /// `order`: the same with the keys in the file's order, in which new tokens get their ids.
  void load(const fs::path& path, std::optional<JsonNode>& node, nlohmann::ordered_json* order = nullptr) {
    if (!fs::exists(path)) return;  // not is_regular_file: read_json_file says what is wrong with a pipe or a folder
    documents_.push_back(std::make_unique<nlohmann::json>(read_json_file(path)));
    node.emplace(*documents_.back(), path);
    if (!documents_.back()->is_object()) node->fail(fmt::format("is not an object. {}", kDamagedSettings));
    if (!order) return;
    std::string text = read_text_file(path, ExitCode::bad_data);
    replace_odd_numbers(text);
    *order = parse_ordered_json(text);
  }

  void choose_class() {
    std::string named;
    bool has_code = false;
    if (config_) {
      if (std::optional<JsonNode> field = config_->find("tokenizer_class")) named = field->text();
      const std::optional<JsonNode> code = config_->find("auto_map");
      has_code = code && (!code->value().is_object() || code->find("AutoTokenizer"));
    }
    const auto is_byte_level = [this] {
      return file_ && file_->value().dump().find("\"ByteLevel\"") != std::string::npos;
    };
    const ChosenClass chosen = choose_tokenizer_class(model_, named, has_code, is_byte_level);
    settings_.class_name = chosen.name;
    settings_.needs_code = chosen.needs_code;
    settings_.reader = class_named(chosen.name);
    if (has_code && !chosen.needs_code) {
      settings_.notices.push_back(
          fmt::format("{}: the Python code that it names (auto_map) is not used, but the class {}; transformers does "
                      "the same without trust_remote_code",
                      config_->file().string(), chosen.name.empty() ? kGenericClass : chosen.name));
    }
    if (!model_.type.empty() && !is_known_model(model_.type) && settings_.reader != Class::other) {
      settings_.notices.push_back(fmt::format(
          "{}: the model_type {} is not known here, nor to transformers {}.{}, so the tokenizer's class could not be "
          "determined from it; {}",
          model_file_.string(), model_.type, kTransformersMajor, kTransformersMinor,
          chosen.name.empty() ? "its file is read as it is" : fmt::format("the class {} is used", chosen.name)));
    }
  }

  /// Files that transformers wrote before version 5 have a wrong expression for Mistral's models.
  TokenizerSettings::MistralRegex mistral_regex() const {
    using enum TokenizerSettings::MistralRegex;
    const bool is_mistral =
        is_listed(std::array{"", "mistral", "mistral3", "voxtral", "ministral", "pixtral"}, model_.type);
    if (!model_.is_there || !is_mistral || model_.is_of_version_5()) return as_in_file;
    if (!config_ || !config_->find("fix_mistral_regex")) return reported;
    return config_->flag("fix_mistral_regex", false) ? replaced : as_in_file;
  }

  void read_config() {
    const JsonNode& config = *config_;
    settings_.split_special_tokens = config.flag("split_special_tokens", false);
    settings_.add_prefix_space = config.flag("add_prefix_space", settings_.add_prefix_space);
    if (config.value().contains("legacy")) settings_.legacy = config.flag("legacy", false);  // null is false
    if (!file_) {  // a tokenizer.json has a post-processor, which decides instead
      settings_.add_bos = config.flag("add_bos_token", false);
      settings_.add_eos = config.flag("add_eos_token", false);
    }
    if (std::optional<JsonNode> files = config.find("fast_tokenizer_files")) {
      settings_.newest_file = newest_tokenizer_file(*files);
    }
    bool lists_own = false;
    for (const auto& [key, ordered] : config_order_.items()) {
      const nlohmann::json& value = config.value().at(key);
      if (is_listed(kSpecialKeys, key)) {
        read_special(config, key);
      } else if (key.ends_with("_token") && (value.is_string() || value.is_object())) {
        set(key, special_token(config.at(key)), /*is_own=*/value.is_string()).is_object = value.is_object();
        lists_own = lists_own || value.is_string();
      }
    }
    std::optional<JsonNode> list = config.find("extra_special_tokens");
    const bool has_former = config.value().contains("additional_special_tokens");
    if (has_former && (!list || list->value().empty())) list = config.find("additional_special_tokens");
    lists_own = lists_own || (list && list->value().is_object() && !list->value().empty());
    const std::optional<JsonNode> own = config.find("model_specific_special_tokens");
    if (own && !lists_own) read_own(*own, config_order_);  // another list of such tokens replaces this one
    if (list) {
      read_extra(*list, config_order_);
    } else {  // null is an empty list, not a missing one
      settings_.names_extra = has_former || config.value().contains("extra_special_tokens");
    }
  }

  /// A token of kSpecialKeys, or null for none.
  void read_special(const JsonNode& file, const std::string& key) {
    const JsonNode node(file.value().at(key), file.file(), key);
    if (node.value().is_null()) return unset(key);
    if (!node.value().is_string() && !node.value().is_object()) {
      node.fail("is neither a string, nor an object with flags, nor null. Correct it.");
    }
    set(key, special_token(node)).is_object = node.value().is_object();
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
  /// `is_own`: the token is one of the model's list of its own tokens, which counts more than a field of its name.
  Named& set(const std::string& key, AddedToken token, bool is_own = false) {
    std::erase(settings_.none, key);
    const auto [place, is_new] = named_by_key_.try_emplace(key, settings_.named.size());
    if (is_new) settings_.named.push_back({key, {}, /*by_default=*/false, /*is_object=*/false, is_own});
    Named& named = settings_.named[place->second];
    const bool counts = is_own || !named.is_own;
    named.is_own = named.is_own && is_own;
    if (!counts) return named;
    named.token = std::move(token);
    named.is_object = false;
    return named;
  }

  void unset(const std::string& key) {
    settings_.none.push_back(key);
    if (!named_by_key_.contains(key)) return;
    std::erase_if(settings_.named, [&](const Named& named) { return named.key == key; });
    named_by_key_.clear();
    for (size_t i = 0; i < settings_.named.size(); ++i) named_by_key_[settings_.named[i].key] = i;
  }

  /// Null if no file has named a token `key`.
  const Named* named(const std::string& key) const {
    auto found = named_by_key_.find(key);
    return found == named_by_key_.end() ? nullptr : &settings_.named[found->second];
  }

  /// The model's own tokens, by names such as image_token. `order`: of the file that has them.
  void read_own(const JsonNode& list, const nlohmann::ordered_json& order) {
    if (!list.value().is_object()) list.fail(fmt::format("is not an object. {}", kDamagedSettings));
    for (const auto& [key, ordered] : order.at(list.place()).items()) {
      set(key, special_token(list.at(key)), /*is_own=*/true);
    }
  }

  void read_extra(const JsonNode& list, const nlohmann::ordered_json& order) {
    settings_.names_extra = list.value().is_array();
    if (list.value().is_object()) return read_own(list, order);
    for (size_t i = 0; i < list.size(); ++i) {
      AddedToken token = special_token(list.at(i));
      if (seen_extra_.insert(token).second) settings_.extra.push_back(std::move(token));
    }
  }

  /// The newer form: added_tokens_decoder alone counts.
  void read_decoder() {
    settings_.lists_added = true;
    const JsonNode decoder(config_->value().at("added_tokens_decoder"), config_->file(), "added_tokens_decoder");
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
    for (const auto& [key, ordered] : map_order_.items()) {
      const nlohmann::json& value = map_->value().at(key);
      const bool former = key == "additional_special_tokens" && !settings_.names_extra;
      if (value.is_null() && key == "extra_special_tokens") {
        settings_.extra.clear();  // also those of the config
        seen_extra_.clear();
        settings_.names_extra = true;
        settings_.former_extra = false;
      }
      if (!value.is_null() && (former || key == "extra_special_tokens")) {
        read_extra(*map_->find(key), map_order_);
        settings_.former_extra = former;
      }
      if (is_listed(kSpecialKeys, key) || (key.ends_with("_token") && (value.is_string() || value.is_object()))) {
        read_of_map(key);
      }
    }
  }

  void read_of_map(const std::string& key) {
    const Named* before = named(key);
    const std::string of_config = before ? before->token.content : "";
    const bool config_counts = before && before->is_own;
    if (is_listed(kSpecialKeys, key)) {
      read_special(*map_, key);
    } else {
      set(key, special_token(map_->at(key)));
    }
    std::string of_map = "null";
    if (named(key)) {
      Named& now = settings_.named[named_by_key_[key]];
      now.token.make_special();
      now.is_object = false;
      of_map = fmt::format("\"{}\"", config_counts ? special_token(map_->at(key)).content : now.token.content);
    }
    if (!before || of_map == fmt::format("\"{}\"", of_config)) return;
    settings_.notices.push_back(fmt::format(
        "{}: its {} {} is {}used, {} \"{}\" of tokenizer_config.json beside it; transformers reads it so, too",
        map_->file().string(), key, of_map, config_counts ? "not " : "", config_counts ? "but" : "not", of_config));
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
    if (const std::string padding = padding_token(); !padding.empty()) settings_.add_default("pad_token", padding);
    const auto place = [](const Named& named) {
      return std::pair(std::find(kSpecialKeys.begin(), kSpecialKeys.end(), named.key), named.is_own);
    };
    std::stable_sort(settings_.named.begin(), settings_.named.end(),
                     [&](const Named& a, const Named& b) { return place(a) < place(b); });
  }

  /// The token with which the file that is read pads a text, where no file names another; empty: none.
  std::string padding_token() const {
    const Class reader = settings_.reader;
    if (reader == Class::qwen2 || reader == Class::gpt2 || reader == Class::gpt_neox) return {};  // they have their own
    const bool is_rebuilt = file_ && reader == Class::llama;  // only the padding of tokenizer.json is kept then
    std::optional<JsonNode> padding;
    if (config_ && !is_rebuilt) padding = config_->find("tokenizer_padding");
    if (file_ && (!padding || padding->value().empty())) padding = file_->find("padding");
    return padding && !padding->value().empty() ? padding->text("pad_token") : "";
  }

  std::vector<std::unique_ptr<nlohmann::json>> documents_;
  std::optional<JsonNode> config_, map_, list_;
  nlohmann::ordered_json config_order_, map_order_;
  const std::optional<JsonNode>& file_;
  ModelConfig model_;
  fs::path model_file_;
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
