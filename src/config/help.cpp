#include "titan/config/help.h"

#include <fmt/format.h>

#include "titan/base/text.h"

namespace titan {
namespace {

// Output keeps to 120 columns: a key and its type are in one half, what it means in the other.
constexpr size_t kWidth = 116;
constexpr size_t kHelpColumn = 58;

std::string default_text(const Option& option) {
  if (!option.follows.empty()) return option.follows;
  std::string text = to_toml(option.default_2026);
  if (option.default_2024 == option.default_2026) return text;
  return fmt::format("{}, in 2024 {}", text, to_toml(option.default_2024));
}

std::string status_text(const Option& option) {
  if (!option.idle_alone.empty()) return "no effect in a run of one process: " + option.idle_alone;
  return option.idle.empty() ? "" : "no effect here: " + option.idle;
}

/// Wraps `text` into lines of at most `width` bytes.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split(text, ' ')) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

/// "  --section.key TYPE"; a short list of choices replaces the type.
std::string help_left(const Option& option, bool& lists_choices) {
  std::string choices = "{" + join(option.choice_list(), ",") + "}";
  lists_choices = !option.choice_list().empty() && option.key.size() + choices.size() < kWidth - 10;
  std::string type = lists_choices ? choices : option.type == ValueType::boolean ? "" : short_name(option.type);
  return "  --" + option.key + (type.empty() ? "" : " " + type);
}

std::string help_entry(const Option& option) {
  bool lists_choices = false;
  std::string left = help_left(option, lists_choices);
  std::string right = option.description + fmt::format(" (default: {})", default_text(option));
  if (!lists_choices && !option.choice_list().empty()) right += "; one of " + join(option.choice_list(), ", ");
  std::string status = status_text(option);
  if (!status.empty()) right += "; " + status;
  std::string text;
  if (left.size() + 1 >= kHelpColumn) {
    text = left + "\n";
    left.clear();
  }
  for (const std::string& line : wrap(right, kWidth - kHelpColumn)) {
    text += fmt::format("{:<{}}{}\n", left, kHelpColumn, line);
    left.clear();
  }
  return text;
}

std::vector<std::string> former_spellings(const Schema& schema, const std::string& key) {
  std::vector<std::string> spellings;
  for (const Alias& alias : schema.aliases()) {
    if (alias.target == key) spellings.push_back(alias.key + (alias.change.empty() ? "" : " (" + alias.change + ")"));
  }
  return spellings;
}

/// A cell of a Markdown table.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

std::string default_cell(const Option& option) {
  if (!option.follows.empty()) return "`" + option.follows + "`";
  std::string text = "`" + to_toml(option.default_2026) + "`";
  if (option.default_2024 == option.default_2026) return text;
  return text + ", in 2024 `" + to_toml(option.default_2024) + "`";
}

std::string docs_row(const Option& option) {
  std::string meaning = option.description;
  std::string status = status_text(option);
  if (option.condition) meaning += fmt::format(" (only with {})", option.condition->text);
  if (!status.empty()) meaning += fmt::format(". *{}*", status);
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", option.name(), short_name(option.type),
                     cell(default_cell(option)), cell(option.allowed()), cell(meaning));
}

std::string field_rows(const Option& option) {
  std::string rows;
  for (const Option& field : option.fields) {
    bool required = std::holds_alternative<std::monostate>(field.default_2026);
    rows += fmt::format("| `{}.{}` | {} | {} | {} | {} |\n", option.name(), field.name(), short_name(field.type),
                        required ? "required" : "`" + to_toml(field.default_2026) + "`", field.allowed(),
                        field.description);
  }
  return rows;
}

std::string era_text(Era era) {
  switch (era) {
    case Era::early:
      return "December 2024";
    case Era::later:
      return "2025";
    case Era::own:
      return "torchtitan's guide";
    case Era::always:
      return "both";
  }
  return {};
}

}  // namespace

std::string help_text(const Schema& schema, std::string_view section) {
  std::string text;
  for (const SectionInfo& info : schema.sections()) {
    if (!info.name.starts_with(section)) continue;
    text += fmt::format("{}{}: {}\n", text.empty() ? "" : "\n", info.name, info.description);
    for (const Option& option : schema.options()) {
      if (option.section == info.name) text += help_entry(option);
    }
  }
  return text;
}

std::string explain_text(const Schema& schema, std::string_view key, const LoadedConfig* loaded) {
  std::string text;
  const Option* option = schema.find(key);
  if (option == nullptr) {
    const Alias& alias = *schema.find_alias(key);
    std::string change = alias.change.empty() ? "" : " (" + alias.change + ")";
    text += fmt::format("{} is now {}{}\n\n", alias.key, alias.target, change);
    option = schema.find(alias.target);
  }
  auto line = [&](const char* title, const std::string& content) {
    if (!content.empty()) text += fmt::format("  {:<9} {}\n", title, content);
  };
  text += option->key + "\n";
  line("meaning", option->description);
  line("type", describe(option->type) + (option->optional ? ", or none" : ""));
  line("default", default_text(*option));
  line("allowed", option->allowed());
  line("needs", option->condition ? option->condition->text : std::string());
  line("formerly", join(former_spellings(schema, option->key), ", "));
  line("status", status_text(*option));
  for (const Option& field : option->fields) line(field.name().c_str(), field.description);
  if (loaded != nullptr && option->read) {
    line("value",
         fmt::format("{} ({})", to_toml(option->read(loaded->config)), loaded->origins.place(option->key).to_string()));
  }
  return text;
}

std::string docs_text(const Schema& schema) {
  std::string text;
  for (const SectionInfo& info : schema.sections()) {
    std::string rows;
    for (const Option& option : schema.options()) {
      if (option.section == info.name) rows += docs_row(option) + field_rows(option);
    }
    text += fmt::format("### {}\n\n{}\n\n| option | type | default | allowed | meaning |\n|---|---|---|---|---|\n{}\n",
                        info.name, info.description, rows);
  }
  text += "### Former spellings\n\n| spelling | now | change of value | known to |\n|---|---|---|---|\n";
  for (const Alias& alias : schema.aliases()) {
    text += fmt::format("| `{}` | `{}` | {} | {} |\n", alias.key, alias.target, alias.change, era_text(alias.era));
  }
  return text;
}

}  // namespace titan
