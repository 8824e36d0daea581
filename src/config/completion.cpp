#include "titan/config/completion.h"

#include <fmt/format.h>

#include "titan/base/text.h"

namespace titan {
namespace {

/// All words that begin with `--`: options, and the negated form of boolean ones.
std::string option_words(const Schema& schema) {
  std::vector<std::string> words;
  for (const Option& option : schema.options()) {
    words.push_back("--" + option.key);
    if (option.type == ValueType::boolean) words.push_back("--" + option.section + ".no-" + option.name());
  }
  return join(words, "\n    ");
}

/// `[--optimizer.name]="Adam AdamW"` for each option with a fixed set of values.
std::string value_words(const Schema& schema, const CompletionWords& words) {
  std::vector<std::string> entries;
  for (const Option& option : schema.options()) {
    auto known = words.values.find(option.key);
    const std::vector<std::string>& choices = known == words.values.end() ? option.choice_list() : known->second;
    if (!choices.empty()) entries.push_back(fmt::format("[--{}]=\"{}\"", option.key, join(choices, " ")));
  }
  return join(entries, "\n    ");
}

/// Boolean options: their value is part of the word, never the next word.
std::string flag_words(const Schema& schema) {
  std::vector<std::string> entries;
  for (const Option& option : schema.options()) {
    if (option.type == ValueType::boolean) entries.push_back(fmt::format("[--{}]=1", option.key));
  }
  return join(entries, "\n    ");
}

std::string next_words(const CompletionWords& words) {
  std::vector<std::string> entries;
  for (const CompletionWords::Subcommand& command : words.subcommands) {
    if (!command.next.empty()) entries.push_back(fmt::format("[{}]=\"{}\"", command.name, join(command.next, " ")));
  }
  return join(entries, " ");
}

std::string first_words(const CompletionWords& words) {
  std::vector<std::string> names;
  for (const CompletionWords::Subcommand& command : words.subcommands) names.push_back(command.name);
  return join(names, " ");
}

/// `[data/peek]="--documents --tokenizer"` for each command with its own options.
std::string own_words(const CompletionWords& words) {
  std::vector<std::string> entries;
  for (const auto& [command, options] : words.own_options) {
    entries.push_back(fmt::format("[{}]=\"{}\"", command, join(options, " ")));
  }
  return join(entries, "\n    ");
}

/// The subcommands that take no options of the schema, as a shell pattern.
std::string without_options(const CompletionWords& words) {
  std::vector<std::string> names;
  for (const CompletionWords::Subcommand& command : words.subcommands) {
    if (!command.takes_options) names.push_back(command.name);
  }
  return names.empty() ? "''" : join(names, "|");
}

constexpr const char* kBash = R"(# bash completion for titan_train; load it with: source <(titan_train completion bash)
_titan_train() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" command="${{COMP_WORDS[1]}}"
  local option="" value_of="" candidates=""
  local -A values=(
    {values}
  )
  local -A flags=(
    {flags}
  )
  local -A next=({next})
  local -A own=(
    {own}
  )
  local options="
    {options}"
  local own_options="${{own[$command]:-}}${{own[$command/${{COMP_WORDS[2]:-}}]:-}}"
  # Bash hands over "--a=b" as three words.
  if [[ "$word" == "=" ]]; then
    word="" option="$previous" value_of="$previous"
  elif [[ "$previous" == "=" ]]; then
    option="${{COMP_WORDS[COMP_CWORD - 2]}}" value_of="$option"
  elif [[ "$previous" == --* && -z "${{flags[$previous]:-}}" && "$previous" != --*.no-* ]]; then
    value_of="$previous"
  fi
  COMPREPLY=()
  if ((COMP_CWORD == 2)) && [[ -n "${{next[$command]:-}}" ]]; then
    candidates="${{next[$command]}}"
  elif [[ "$word" == -* && -n "$own_options" ]]; then
    candidates="$own_options"
    [[ "$command" == @({without_options}) ]] || candidates+=" $options"
  elif [[ "$command" == @({without_options}) ]] && ((COMP_CWORD > 1)); then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  elif [[ -n "$option" && -n "${{flags[$option]:-}}" ]]; then
    candidates="true false"
  elif [[ "$value_of" == --* && -n "${{values[$value_of]:-}}" ]]; then
    candidates="${{values[$value_of]}}"
  elif [[ "$value_of" == --* && "$value_of" != --job.config_file ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  elif [[ "$word" == -* ]]; then
    candidates="$options"
  else
    ((COMP_CWORD == 1)) && mapfile -t COMPREPLY < <(compgen -W "{subcommands}" -- "$word")
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -d -- "$word"; compgen -f -X '!*.toml' -- "$word")
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$word")
}}
complete -o filenames -F _titan_train titan_train
)";

constexpr const char* kZsh = R"(#compdef titan_train
# zsh completion for titan_train; load it with: source <(titan_train completion zsh)
_titan_train() {{
  local -A values flags next own
  values=(
    {values}
  )
  flags=(
    {flags}
  )
  next=({next})
  own=(
    {own}
  )
  local -a options own_options
  options=(
    {options}
  )
  local word="${{words[CURRENT]}}" previous="${{words[CURRENT - 1]}}" subcommand="${{words[2]}}" option value_of
  own_options=(${{=own[$subcommand]}} ${{=own[$subcommand/${{words[3]}}]}})
  if [[ "$word" == --*=* ]]; then
    option="${{word%%=*}}" value_of="$option"
    compset -P '*='
  elif [[ "$previous" == --* && "$previous" != *=* && -z "${{flags[$previous]}}" && "$previous" != --*.no-* ]]; then
    value_of="$previous"
  fi
  if (( CURRENT == 3 )) && [[ -n "${{next[$subcommand]}}" ]]; then
    compadd -- ${{=next[$subcommand]}}
  elif [[ "$word" == -* && -z "$option" && -n "$own_options" ]]; then
    compadd -- $own_options
    [[ "$subcommand" == ({without_options}) ]] || compadd -- $options
  elif (( CURRENT > 2 )) && [[ "$subcommand" == ({without_options}) ]]; then
    _files
  elif [[ -n "$option" && -n "${{flags[$option]}}" ]]; then
    compadd -- true false
  elif [[ -n "$value_of" && -n "${{values[$value_of]}}" ]]; then
    compadd -- ${{=values[$value_of]}}
  elif [[ -n "$value_of" && "$value_of" != --job.config_file ]]; then
    _files
  elif [[ "$word" == -* && -z "$option" ]]; then
    compadd -- $options
  else
    (( CURRENT == 2 )) && compadd -- {subcommands}
    _files -g '*.toml'
  fi
}}
if whence compdef > /dev/null; then compdef _titan_train titan_train; fi
)";

}  // namespace

std::string completion_script(const Schema& schema, std::string_view shell, const CompletionWords& words) {
  if (shell != "bash" && shell != "zsh") return {};
  const char* form = shell == "bash" ? kBash : kZsh;
  return fmt::format(fmt::runtime(form), fmt::arg("values", value_words(schema, words)),
                     fmt::arg("flags", flag_words(schema)), fmt::arg("options", option_words(schema)),
                     fmt::arg("next", next_words(words)), fmt::arg("subcommands", first_words(words)),
                     fmt::arg("without_options", without_options(words)), fmt::arg("own", own_words(words)));
}

}  // namespace titan
