// What is wrong with a configuration and where: collected, never thrown one at a time. Every part that checks a config
// (e.g. the model table, the tokenizer) adds to the same list.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

/// The origin of a value: `file:line:column`, a word of the command line, or the option's default.
struct Place {
  enum class Kind { default_value, file, command_line };
  Kind kind = Kind::default_value;
  std::string source;  ///< the file, the word as typed, or the option's key
  int line = 0;        ///< 1-based; for the command line the number of the word, used only for sorting
  int column = 0;

  std::string to_string() const;
};

enum class Severity { error, note };

struct Problem {
  Place where;
  std::string key;     ///< the current spelling of the option; for a mistyped key or section the most likely option;
                       ///< empty if the file itself is the problem
  std::string what;    ///< what is wrong, without a full stop
  std::string remedy;  ///< what to do about it, without a full stop
  Severity severity = Severity::error;
};

/// The place of each option that the user gave, by its current key.
class Origins {
 public:
  /// `spelling`: the key as the user wrote it; differs from `key` for an alias.
  void set(const std::string& key, Place place, std::string spelling);
  bool is_set(std::string_view key) const { return origins_.find(key) != origins_.end(); }
  /// The origin of the value of `key`; the default's place if the option is not set.
  Place place(std::string_view key) const;
  /// The user's own spelling, or `key` itself.
  std::string spelling(std::string_view key) const;

  Problem problem(std::string_view key, std::string what, std::string remedy) const;
  Problem note(std::string_view key, std::string what, std::string remedy = {}) const;

 private:
  struct Origin {
    Place place;
    std::string spelling;
  };
  std::map<std::string, Origin, std::less<>> origins_;
};

/// A check of a whole config. Runs after every value has its type and is in range.
using ConfigCheck = std::function<std::vector<Problem>(const JobConfig&, const Origins&)>;

/// Files by position, then the command line in its order, then defaults.
void sort_by_place(std::vector<Problem>& problems);

/// One line per problem: `configs/a.toml:12:3: unknown option training.stps; did you mean training.steps?`
std::string format_problem(const Problem& problem);
std::string format_problems(const std::vector<Problem>& problems);

}  // namespace titan
