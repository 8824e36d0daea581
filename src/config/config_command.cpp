#include "titan/config/config_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/config/dump.h"
#include "titan/config/help.h"

namespace titan {
namespace {

constexpr int kGood = static_cast<int>(ExitCode::success);
constexpr int kDifferent = 1;  // as diff and cmp do, so that scripts can tell a difference from a bad config
constexpr int kBad = static_cast<int>(ExitCode::bad_config);

constexpr const char* kUsage = R"(titan_train config show [FILE] [--section.key value]... [--json]   the merged config
titan_train config explain KEY [FILE] [--section.key value]...     all about one option, and its value there;
                                                                   lr finds optimizer.lr
titan_train config diff A B                                        the options in which two files differ (exit 1)
titan_train config docs                                            tables of all options, in Markdown
)";
constexpr const char* kExample = "\nExample:\n  titan_train config explain training.seq_len\n";

using Words = std::span<const std::string>;

struct Context {
  const Schema& schema;
  std::span<const ConfigCheck> checks;
  std::ostream& output;
  std::ostream& errors;
};

bool asks_for_help(Words words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

int usage(std::ostream& errors, const std::string& what) {
  errors << what << "\n" << kUsage;
  return kBad;
}

/// Reports the problems; returns false if the config cannot be used.
bool load_or_report(const Context& context, Words words, LoadedConfig& loaded) {
  loaded = load_config(context.schema, words, context.checks);
  print_problems(context.errors, loaded.problems);
  return loaded.problems.empty();
}

void print_notes(const Context& context, const LoadedConfig& loaded) {
  for (const auto& notes : {loaded.renamed, loaded.notes}) {
    for (const std::string& note : notes) context.errors << note << "\n";
  }
}

int show(const Context& context, Words arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  bool json = std::erase(words, "--json") > 0;
  LoadedConfig loaded;
  const bool good = load_or_report(context, words, loaded);
  print_notes(context, loaded);
  if (!good) return kBad;
  context.output << (json ? dump_json(context.schema, loaded.config)
                          : dump_toml(context.schema, loaded.config, &loaded.origins));
  return kGood;
}

/// The options that end in ".`key`", otherwise the former spellings that do. If one of them is in a section and the
/// others in sections of that one (optimizer.lr, optimizer.muon.lr), only that one.
std::vector<std::string> with_ending(const Context& context, const std::string& key) {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& known) {
    if (known.ends_with("." + key)) keys.push_back(known);
  };
  for (const Option& option : context.schema.options()) add(option.key);
  for (const std::string& outer : keys) {
    const std::string section = outer.substr(0, outer.size() - key.size());
    const auto is_inside = [&](const std::string& other) { return other.starts_with(section); };
    if (std::all_of(keys.begin(), keys.end(), is_inside)) return {outer};
  }
  if (!keys.empty()) return keys;
  for (const Alias& alias : context.schema.aliases()) add(alias.key);
  return keys;
}

int explain(const Context& context, Words arguments) {
  if (arguments.empty()) return usage(context.errors, "config explain needs an option, such as training.seq_len");
  std::string key = arguments[0].starts_with("--") ? arguments[0].substr(2) : arguments[0];
  std::replace(key.begin(), key.end(), '-', '_');
  std::vector<std::string> keys =
      context.schema.is_section(key) ? std::vector<std::string>() : with_ending(context, key);
  if (keys.size() > 1) {
    context.output << key << " may be one of\n";
    for (const std::string& one : keys) context.output << "  " << context.schema.display_name(one) << "\n";
    return kGood;
  }
  if (keys.empty()) keys = context.schema.completions(key);
  if (keys.empty()) {
    const std::vector<std::string> close = context.schema.suggest(key, 1);
    const std::string hint = close.empty()
                                 ? "; titan_train config docs lists all"
                                 : fmt::format("; did you mean {}?", context.schema.display_name(close.front()));
    context.errors << "unknown option " << key << hint << "\n";
    return kBad;
  }
  Words rest = arguments.subspan(1);
  LoadedConfig loaded;
  if (!rest.empty() && !load_or_report(context, rest, loaded)) return kBad;
  for (size_t i = 0; i < keys.size(); ++i) {
    context.output << (i > 0 ? "\n" : "") << explain_text(context.schema, keys[i], rest.empty() ? nullptr : &loaded);
  }
  return kGood;
}

int diff(const Context& context, Words arguments) {
  if (arguments.size() != 2) return usage(context.errors, "config diff needs two files");
  LoadedConfig a;
  LoadedConfig b;
  // Notes are not printed here: the table has former spellings beside their values, and notes would separate its rows.
  bool good_a = load_or_report(context, arguments.subspan(0, 1), a);
  bool good_b = load_or_report(context, arguments.subspan(1, 1), b);
  if (!good_a || !good_b) return kBad;
  std::string difference =
      diff_configs(context.schema, {a.config, arguments[0], &a.origins}, {b.config, arguments[1], &b.origins});
  context.output << (difference.empty() ? "no option differs\n" : difference);
  return difference.empty() ? kGood : kDifferent;
}

}  // namespace

void print_problems(std::ostream& errors, const std::vector<Problem>& problems) {
  if (problems.empty()) return;
  errors << (problems.size() == 1 ? std::string("1 problem") : fmt::format("{} problems", problems.size()))
         << " in the configuration:\n"
         << format_problems(problems);
}

std::vector<std::string> config_command_words() { return {"show", "explain", "diff", "docs"}; }

int config_command(const Schema& schema, Words arguments, std::span<const ConfigCheck> checks, std::ostream& output,
                   std::ostream& errors) {
  Context context{schema, checks, output, errors};
  std::string what = arguments.empty() ? "" : arguments[0];
  if (asks_for_help(arguments)) {
    output << kUsage << kExample;
    return kGood;
  }
  if (what == "show") return show(context, arguments.subspan(1));
  if (what == "explain") return explain(context, arguments.subspan(1));
  if (what == "diff") return diff(context, arguments.subspan(1));
  if (what == "docs") {
    output << docs_text(schema);
    return kGood;
  }
  const std::vector<std::string> words = config_command_words();
  if (what.empty()) return usage(errors, "config needs one of " + join(words, ", "));
  const std::vector<std::string> close = nearest(what, words, 1);
  const std::string hint = close.empty() ? "" : fmt::format("; did you mean config {}?", close.front());
  return usage(errors, fmt::format("config has no command {}{}", what, hint));
}

int completion_command(const Schema& schema, Words arguments, const CompletionWords& words, std::ostream& output,
                       std::ostream& errors) {
  constexpr const char* usage_line = "titan_train completion bash | zsh\n";
  constexpr const char* example = "\nExample:\n  source <(titan_train completion bash)\n";
  if (asks_for_help(arguments)) {
    output << usage_line << example;
    return kGood;
  }
  std::string script = arguments.size() == 1 ? completion_script(schema, arguments[0], words) : std::string();
  if (script.empty()) {
    errors << usage_line;
    return kBad;
  }
  output << script;
  return kGood;
}

}  // namespace titan
