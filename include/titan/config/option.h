// One option of the schema, described in a single place with a fluent interface (schema_*.cpp). Owned by the schema;
// knows its typed field but not how values are read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/value.h"

namespace titan {

/// The generation of a spelling; decides a config file's generation.
enum class Era {
  always,  ///< in both of torchtitan's generations
  early,   ///< December 2024 only
  later,   ///< only after December 2024
  own      ///< this program's own; does not indicate a generation
};

/// The condition under which an option has an effect, as text and as a predicate.
struct Condition {
  std::string text;  ///< "checkpoint.enable = true"
  std::function<bool(const JobConfig&)> holds;
};

class Option {
 public:
  std::string key;      ///< "training.seq_len"
  std::string section;  ///< "training"
  ValueType type{};
  bool optional = false;  ///< may have no value
  Value default_2024;
  Value default_2026;
  std::string description;
  Era era = Era::always;

  std::string idle;             ///< why it never has an effect here; empty: it has one
  std::vector<Value> harmless;  ///< accepted values of such an option, because they request nothing; empty: all
  std::optional<Condition> condition;
  std::string idle_alone;  ///< why it has no effect in a run of one process; empty: it has one
  std::string follows;     ///< the option whose value is this one's default; empty: it has its own default

  std::function<void(JobConfig&, const Value&)> write;  ///< empty for an option that is accepted but not used
  std::function<Value(const JobConfig&)> read;
  std::vector<Option> fields;  ///< of each table, for a `records` option

  const Value& default_for(Generation generation) const {
    return generation == Generation::december_2024 ? default_2024 : default_2026;
  }
  std::string name() const { return key.substr(section.size() + 1); }

  // The description, in the usual order of calls.
  Option& help(std::string text);
  Option& in_2024(Value value);
  Option& later();
  Option& early();
  Option& own();
  Option& at_least(double minimum);
  Option& above(double minimum);
  Option& at_most(double maximum);
  Option& below(double maximum);
  Option& or_else(int64_t value);                    ///< an additional value outside the range, such as -1
  Option& choices(std::vector<std::string> values);  ///< of the text, or of every element of a list
  Option& any_case();                                ///< choices ignore case
  Option& formerly(std::string old_value, std::string value);
  Option& refuses(std::string value, std::string why);  ///< a value of other programs that is not supported here
  Option& not_empty();
  Option& integer_spelling();  ///< a text that may be written as a bare integer: 2 for "2"
  /// A custom check: `wrong` returns what is wrong with a value, or nothing.
  Option& rule(std::string text, std::function<std::optional<std::string>(const Value&)> wrong);
  Option& no_effect(std::string why, std::vector<Value> harmless_values = {});
  Option& only_when(Condition when);
  Option& among_several(std::string why_idle_alone);  ///< has an effect only with several processes
  Option& default_from(std::string other_key);        ///< an option of the same type
  /// A key of each table in an array of tables.
  Option& field(const std::string& name, ValueType type, Value default_value, std::string help_text);

  /// Converts a value of the right type to its canonical spelling (case, former names); does not check its range.
  Value canonical(Value value) const;
  /// What is wrong with a value of the right type, or nothing: checks range, choices and the custom check.
  std::optional<std::string> violation(const Value& value) const;
  /// A value of this option's type, or nothing: convert() plus the integer spelling.
  std::optional<Value> accept(const Value& value) const;
  /// "≥ 1 or -1", "a, b or c": the allowed values, for messages and tables; empty: any.
  std::string allowed() const;
  /// True if `value` requests nothing unsupported.
  bool is_harmless(const Value& value) const;
  const std::vector<std::string>& choice_list() const { return choices_; }

 private:
  std::optional<std::string> range_violation(double number) const;
  std::optional<std::string> choice_violation(const std::string& word) const;

  std::optional<double> minimum_;
  std::optional<double> maximum_;
  bool minimum_excluded_ = false;
  bool maximum_excluded_ = false;
  bool any_case_ = false;
  bool not_empty_ = false;
  bool integer_spelling_ = false;
  std::optional<int64_t> or_else_;
  std::vector<std::string> choices_;
  std::vector<std::pair<std::string, std::string>> former_values_;
  std::vector<std::pair<std::string, std::string>> refused_;
  std::string rule_text_;
  std::function<std::optional<std::string>(const Value&)> rule_;
};

}  // namespace titan
