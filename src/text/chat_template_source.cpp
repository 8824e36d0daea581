#include "chat_template_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "json_node.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_source(const std::string& what) { throw Error(ExitCode::bad_config, what); }

constexpr const char* kChatml = R"(
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
)";
constexpr const char* kLlama2 = R"(
{%- set first = '' -%}
{%- if messages[0].role == 'system' -%}
  {%- set first = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role != ['user', 'assistant'][loop.index0 % 2] -%}
    {{- raise_exception('a conversation is a system message or none, then user and assistant in turn') -}}
  {%- endif -%}
  {%- if message.role == 'user' -%}
    {{- bos_token + '[INST] ' + ((first if loop.first else '') + message.content) | trim + ' [/INST]' -}}
  {%- else -%}
    {{- ' ' + message.content | trim + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%}
)";
constexpr const char* kLlama3Begin = R"(
{%- macro head(role) -%}{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{%- endmacro -%}
{{- bos_token + '' -}}
)";
/// The dates are Llama 3.1's defaults. Llama 3.2's template writes the current day, which would make the ids depend on
/// it, and uses these dates only as a fallback.
constexpr const char* kLlama31System = R"(
{{- head('system') + 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' -}}
{%- if messages[0].role == 'system' -%}
  {{- messages[0].content | trim -}}{%- set messages = messages[1:] -%}
{%- endif -%}
{{- '<|eot_id|>' -}}
)";
constexpr const char* kLlama3Turns = R"(
{%- for message in messages -%}{{- head(message.role) + message.content | trim + '<|eot_id|>' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- head('assistant') -}}{%- endif -%}
)";

using NamedSources = std::map<std::string, ChatTemplateSource>;

/// The templates in files of their own.
NamedSources files_in(const fs::path& folder) {
  NamedSources found;
  const auto add = [&](const std::string& name, const fs::path& file) {
    found[name] = {file.string(), read_text_file(file, ExitCode::bad_data)};
  };
  const fs::path own = folder / "chat_template.jinja", more = folder / "additional_chat_templates";
  if (fs::is_regular_file(own)) add("default", own);
  if (!fs::is_directory(more)) return found;
  for (const fs::directory_entry& file : fs::directory_iterator(more)) {
    if (file.path().extension() == ".jinja") add(file.path().stem().string(), file.path());
  }
  return found;
}

/// Those in tokenizer_config.json: one text, or several by name.
NamedSources templates_in(const fs::path& config) {
  if (!fs::is_regular_file(config)) return {};
  const nlohmann::json json = read_json_file(config);
  const std::optional<JsonNode> field = JsonNode(json, config).find("chat_template");
  if (!field) return {};
  NamedSources found;
  if (field->value().is_object()) {
    for (const auto& [name, unused] : field->value().items()) found[name] = {config.string(), field->text(name)};
  } else if (field->value().is_array()) {
    for (size_t i = 0; i < field->size(); ++i) {
      found[field->at(i).text("name")] = {config.string(), field->at(i).text("template")};
    }
  } else {
    found["default"] = {config.string(), field->text()};
  }
  return found;
}

/// The template in a tokenizer's folder.
std::optional<ChatTemplateSource> source_in(const fs::path& tokenizer) {
  const fs::path folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  NamedSources found = files_in(folder);
  if (found.empty()) found = templates_in(folder / "tokenizer_config.json");
  if (found.empty()) return std::nullopt;
  if (const auto one = found.find("default"); one != found.end()) return one->second;
  std::vector<std::string> names;
  for (const auto& [name, source] : found) names.push_back(name);
  refuse_source(
      fmt::format("tokenizer {}: it has the chat templates {} and none of the name default. Write the one that "
                  "is meant to chat_template.jinja in its folder, or set data.chat_template to one of {}.",
                  tokenizer.string(), join(names, ", "), chat_template_alternatives()));
}

std::string literal(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  }
  return quoted + "'";
}

std::string custom_source(const ChatTemplateOptions& options) {
  const ChatSection& custom = options.custom;
  const auto turn = [](const std::string& prefix, const std::string& suffix) {
    return "{{ " + literal(prefix) + " + message.content + " + literal(suffix) + " }}";
  };
  return "{{ " + literal(custom.begin) + " }}{% for message in messages %}{% if message.role == 'system' %}" +
         turn(custom.system_prefix, custom.system_suffix) + "{% elif message.role == 'user' %}" +
         turn(custom.user_prefix, custom.user_suffix) + "{% else %}" +
         turn(custom.assistant_prefix, custom.assistant_suffix) +
         "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ " + literal(custom.assistant_prefix) +
         " }}{% endif %}";
}

}  // namespace

std::string chat_template_alternatives() {
  const std::vector<std::string> names = chat_template_names();
  return join(std::span(names).subspan(1), ", ");
}

ChatTemplateSource chat_template_source(const ChatTemplateOptions& options) {
  const std::string& name = options.name;
  if (name == "llama3") return {name, std::string(kLlama3Begin) + kLlama3Turns};
  if (name == "llama3_1") return {name, std::string(kLlama3Begin) + kLlama31System + kLlama3Turns};
  if (name == "llama2") return {name, kLlama2};
  if (name == "chatml") return {name, kChatml};
  if (name == "custom") {
    if (!options.custom.assistant_suffix.empty()) return {name, custom_source(options)};
    refuse_source(
        "a custom chat template needs a text that ends the assistant's turn. Set data.chat.assistant_suffix.");
  }
  if (name != "auto") {
    refuse_source(fmt::format("there is no chat template {}. There are: {}.", name, join(chat_template_names(), ", ")));
  }
  if (std::optional<ChatTemplateSource> found = source_in(options.tokenizer)) return *found;
  refuse_source(
      fmt::format("tokenizer {}: there is no chat_template in a tokenizer_config.json or chat_template.jinja. Set "
                  "data.chat_template to one of {}.",
                  options.tokenizer.string(), chat_template_alternatives()));
}

void check_special_tokens(const ChatTemplateSource& source, const Tokenizer& tokenizer) {
  std::set<std::string> known;
  for (auto& [name, id] : tokenizer.special_tokens()) known.insert(name);
  std::vector<std::string> missing;
  for (size_t at = source.text.find("<|"); at != std::string::npos; at = source.text.find("<|", at + 1)) {
    const std::string name = source.text.substr(at, source.text.find("|>", at) + 2 - at);
    if (name.ends_with("|>") && name.find_first_of(" \n") == name.npos && known.insert(name).second) {
      missing.push_back(name);
    }
  }
  if (missing.empty()) return;
  refuse_source(
      fmt::format("the chat template {} needs {} as special tokens, which the tokenizer ({}) does not have. Choose "
                  "another data.chat_template, or another tokenizer in model.tokenizer_path.",
                  source.name, join(missing, ", "), tokenizer.description()));
}

}  // namespace titan
