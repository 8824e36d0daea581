#include "titan/config/completion.h"

#include <fmt/format.h>

#include "titan/base/text.h"

namespace titan {
namespace {

/// Every word that may begin with `--`: options, and the negative form of those that are on or off.
std::string option_words(const Schema& schema) {
  std::vector<std::string> words;
  for (const Option& option : schema.options()) {
    words.push_back("--" + option.key);
    if (option.type == ValueType::boolean) words.push_back("--" + option.section + ".no-" + option.name());
  }
  return join(words, "\n    ");
}

/// `[--optimizer.name]="Adam AdamW"` for each option with a fixed set of values.
std::string value_words(const Schema& schema) {
  std::vector<std::string> entries;
  for (const Option& option : schema.options()) {
    const std::vector<std::string>& choices = option.choice_list();
    if (!choices.empty()) entries.push_back(fmt::format("[--{}]=\"{}\"", option.key, join(choices, " ")));
  }
  return join(entries, "\n    ");
}

constexpr const char* kBash = R"(# bash completion for titan_train; load it with: source <(titan_train completion bash)
_titan_train() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}"
  local -A values=(
    {values}
  )
  local options="
    {options}"
  # Bash hands over "--a=b" as three words.
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$previous" == "=" ]]; then
    previous="${{COMP_WORDS[COMP_CWORD - 2]}}"
  fi
  COMPREPLY=()
  if [[ "$previous" == --* && -n "${{values[$previous]:-}}" ]]; then
    COMPREPLY=($(compgen -W "${{values[$previous]}}" -- "$word"))
  elif [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    ((COMP_CWORD == 1)) && COMPREPLY=($(compgen -W "{subcommands}" -- "$word"))
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _titan_train titan_train
)";

constexpr const char* kZsh = R"(#compdef titan_train
# zsh completion for titan_train; load it with: source <(titan_train completion zsh)
_titan_train() {{
  local -A values
  values=(
    {values}
  )
  local -a options
  options=(
    {options}
  )
  local previous="${{words[CURRENT - 1]}}"
  if [[ -n "${{values[$previous]}}" ]]; then
    compadd -- ${{=values[$previous]}}
  elif [[ "${{words[CURRENT]}}" == -* ]]; then
    compadd -- $options
  else
    (( CURRENT == 2 )) && compadd -- {subcommands}
    _files
  fi
}}
if whence compdef > /dev/null; then compdef _titan_train titan_train; fi
)";

}  // namespace

std::string completion_script(const Schema& schema, std::string_view shell, std::span<const std::string> subcommands) {
  if (shell != "bash" && shell != "zsh") return {};
  const char* form = shell == "bash" ? kBash : kZsh;
  return fmt::format(fmt::runtime(form), fmt::arg("values", value_words(schema)),
                     fmt::arg("options", option_words(schema)), fmt::arg("subcommands", join(subcommands, " ")));
}

}  // namespace titan
