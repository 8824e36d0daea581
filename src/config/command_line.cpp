#include "given.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "titan/base/text.h"
#include "titan/config/load.h"

namespace titan::detail {
namespace {

constexpr std::string_view kQuiet = "--quiet";

/// The meaning of a word such as `--training.no-compile=…`.
struct Name {
  std::string key;
  bool negated = false;
  std::vector<std::string> candidates;  ///< if a prefix matches several
};

ValueType type_of(const Schema& schema, const std::string& key) {
  const Option* option = schema.find(key);
  return option != nullptr ? option->type : schema.find_alias(key)->type;
}

/// "training.no_compile" → "training.compile"; empty if `no_` does not follow the last dot.
std::string without_negation(const std::string& name) {
  size_t leaf = name.rfind('.') + 1;
  return name.compare(leaf, 3, "no_") == 0 ? name.substr(0, leaf) + name.substr(leaf + 3) : std::string();
}

Name resolve(const Schema& schema, std::string typed) {
  std::replace(typed.begin(), typed.end(), '-', '_');
  Name name;
  std::vector<std::string> keys = schema.completions(typed);
  std::string positive = without_negation(typed);
  if (keys.empty() && !positive.empty()) {
    keys = schema.completions(positive);
    std::erase_if(keys, [&](const std::string& key) { return type_of(schema, key) != ValueType::boolean; });
    name.negated = true;
  }
  if (keys.size() == 1) name.key = keys.front();
  if (keys.size() > 1) name.candidates = keys;
  return name;
}

/// Rewrites words into the form that CLI11 parses; drops and reports words that have no meaning.
class Normaliser {
 public:
  Normaliser(const Schema& schema, std::span<const std::string> arguments, CommandLine& result)
      : schema_(schema), arguments_(arguments), result_(result) {}

  /// Words for CLI11. Keeps `typed` of each option word for its place.
  std::vector<std::string> run() {
    for (at_ = 0; at_ < arguments_.size(); ++at_) {
      const std::string& word = arguments_[at_];
      if (word == kQuiet) {
        option("--metrics.quiet");
      } else if (word.starts_with("--") && word.size() > 2) {
        option(word);
      } else if (word.starts_with("-") && word.size() > 1) {
        problem(word, "no option begins with a single dash", "write --section.key value");
      } else {
        positional(word);
      }
    }
    return std::move(words_);
  }

  const std::vector<Place>& typed() const { return typed_; }

 private:
  void option(const std::string& word) {
    size_t equals = word.find('=');
    std::string typed = word.substr(0, equals);
    if (typed == "--module" || typed == "--config") return python_config(typed, word.substr(typed.size()));
    Name name = resolve(schema_, typed.substr(2));
    if (name.key.empty()) return unknown(typed, name, equals != std::string::npos);
    ValueType type = type_of(schema_, name.key);
    bool has_value = equals != std::string::npos;
    std::string value = has_value ? word.substr(equals + 1) : std::string();
    if (type == ValueType::boolean) {
      if (!has_value) value = "true";
      if (name.negated) value = value == "true" ? "false" : value == "false" ? "true" : value;
    } else if (!has_value && !take_next(value)) {
      return problem(typed, fmt::format("{} needs a value", name.key), describe_need(type));
    }
    // An empty value must be a separate word, or CLI11 would take the next word as the value.
    typed_.push_back(place(typed));
    words_.push_back("--" + name.key + (value.empty() ? "" : "=" + value));
    if (value.empty()) words_.emplace_back();
  }

  static std::string describe_need(ValueType type) { return "give it " + describe(type); }

  /// Takes the next word unless it is an option (a negative number is not one).
  bool take_next(std::string& value) {
    if (at_ + 1 >= arguments_.size() || arguments_[at_ + 1].starts_with("--")) return false;
    value = arguments_[++at_];
    return true;
  }

  /// The suggested spelling for `typed`: negated if that was negated; a former spelling includes the current name.
  std::string as_word(const std::string& key, const std::string& typed) const {
    const size_t leaf = key.rfind('.') + 1;
    const bool negated = !without_negation(typed).empty() && type_of(schema_, key) == ValueType::boolean &&
                         key.compare(leaf, 3, "no_") != 0;
    return "--" + (negated ? key.substr(0, leaf) + "no-" + key.substr(leaf) : schema_.display_name(key));
  }

  void unknown(const std::string& typed, const Name& name, bool has_value) {
    std::string plain = typed.substr(2);
    std::replace(plain.begin(), plain.end(), '-', '_');
    std::vector<std::string> close = schema_.suggest(plain, 1);
    if (close.empty() && !without_negation(plain).empty()) close = schema_.suggest(without_negation(plain), 1);
    // Treat a bare name such as --lr as an option without its section, not as a prefix.
    bool bare_name = !close.empty() && close.front().ends_with("." + plain);
    if (!name.candidates.empty() && !bare_name) {
      std::span some = std::span(name.candidates).first(std::min<size_t>(6, name.candidates.size()));
      problem(typed, fmt::format("{} may stand for several options", plain), "write one of " + join(some, ", "));
      return skip_value(name.candidates.front(), has_value);
    }
    const std::string meant = close.empty() ? std::string() : schema_.current_key(close.front());
    problem(typed, fmt::format("unknown option {}", plain),
            close.empty() ? "see --help" : fmt::format("did you mean {}?", as_word(close.front(), plain)), meant);
    skip_value(close.empty() ? std::string() : close.front(), has_value);
  }

  /// torchtitan's current command line: `--module llama3 --config llama3_8b` names a Python function.
  void python_config(const std::string& typed, std::string value) {
    if (!value.empty()) value.erase(0, 1);
    if (value.empty()) take_next(value);
    const auto is_config = [](const std::string& word) { return word == "--config" || word.starts_with("--config="); };
    if (typed == "--module" && std::any_of(arguments_.begin(), arguments_.end(), is_config))
      return;  // --config will give the hint; a second one for --module would repeat it
    const bool is_file = value.ends_with(".toml");
    problem(typed,
            is_file ? "a config file is a word of its own"
                    : fmt::format("{} is a config of torchtitan in Python; this program reads TOML files", value),
            is_file ? "write only " + value : config_file_remedy(value), "job.config_file");
  }

  /// Skips the word after an unknown option: it is probably its value, unless the most similar option takes none.
  void skip_value(const std::string& resembled, bool has_value) {
    bool takes_none = !resembled.empty() && type_of(schema_, resembled) == ValueType::boolean;
    std::string ignored;
    if (!has_value && !takes_none) take_next(ignored);
  }

  void positional(const std::string& word) {
    if (word == "true" || word == "false") {
      const std::string before = at_ == 0 ? "" : arguments_[at_ - 1];
      const bool is_flag = before.starts_with("--") && before.find('=') == std::string::npos;
      return problem(word, "a flag takes no separate word",
                     fmt::format("write {}={}", is_flag ? before : "--section.flag", word));
    }
    const std::string key = word.substr(0, word.find('='));
    if (schema_.find(key) != nullptr || schema_.find_alias(key) != nullptr) {
      problem(word, "an option begins with --", "write --" + word);
      return skip_value(key, word != key);
    }
    if (result_.config_file && !word.ends_with(".toml")) {
      return problem(word, fmt::format("neither an option nor its value (the config file is {})", *result_.config_file),
                     "options begin with --, and subcommands come first");
    }
    if (result_.config_file) {
      return problem(word, fmt::format("a second config file (the first is {})", *result_.config_file), "give one");
    }
    result_.config_file = word;
  }

  void problem(const std::string& word, std::string what, std::string remedy, std::string key = {}) {
    result_.problems.push_back({place(word), std::move(key), std::move(what), std::move(remedy), Severity::error});
  }

  Place place(const std::string& word) const { return {Place::Kind::command_line, word, static_cast<int>(at_) + 1, 0}; }

  const Schema& schema_;
  std::span<const std::string> arguments_;
  CommandLine& result_;
  size_t at_ = 0;
  std::vector<std::string> words_;
  std::vector<Place> typed_;
};

}  // namespace

CommandLine read_command_line(const Schema& schema, std::span<const std::string> arguments) {
  CommandLine result;
  if (arguments.empty()) return result;
  Normaliser normaliser(schema, arguments, result);
  std::vector<std::string> words = normaliser.run();
  CLI::App app;
  app.set_help_flag();
  // The key of each option, and how many of its results are used: CLI11 gathers a repeated option's results in one
  // list.
  std::map<const CLI::Option*, std::pair<std::string, size_t>> key_of;
  auto declare = [&](const std::string& key) {
    CLI::Option* option = app.add_option("--" + key)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    key_of[option] = {key, 0};
  };
  for (const Option& option : schema.options()) declare(option.key);
  for (const Alias& alias : schema.aliases()) declare(alias.key);
  std::reverse(words.begin(), words.end());  // CLI11 reads a vector from its end
  app.parse(std::move(words));
  size_t index = 0;
  for (const CLI::Option* option : app.parse_order()) {
    auto& [key, taken] = key_of.at(option);
    result.words.push_back({key, option->results().at(taken++), normaliser.typed().at(index++)});
  }
  return result;
}

}  // namespace titan::detail
