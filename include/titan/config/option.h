// One option of the schema: the only place where it is described. A fluent description fills it in (schema_*.cpp).
// Owned by the schema; knows the typed field it is bound to, and nothing of how values are read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/value.h"

namespace titan {

/// Where a spelling comes from; a config file's generation is decided by it.
enum class Era {
  always,  ///< both of torchtitan's generations
  early,   ///< December 2024 only
  later,   ///< only after December 2024
  own      ///< this program's; says nothing about the generation
};

/// When an option has an effect at all, in words and as a predicate.
struct Condition {
  std::string text;  ///< "checkpoint.enable = true"
  std::function<bool(const JobConfig&)> holds;
};

class Option {
 public:
  std::string key;      ///< "training.seq_len"
  std::string section;  ///< "training"
  ValueType type{};
  bool optional = false;  ///< may be none
  Value default_2024;
  Value default_2026;
  std::string description;
  Era era = Era::always;

  std::string idle;             ///< why it has no effect here; empty: it has one
  std::vector<Value> harmless;  ///< values of such an option that ask for nothing; empty means all
  std::optional<Condition> condition;
  std::string idle_alone;  ///< why it has no effect in a run of one process; empty: it has one there too
  std::string follows;     ///< the option whose value is this one's default; empty: it has a default of its own

  std::function<void(JobConfig&, const Value&)> write;  ///< empty for an option that is only accepted
  std::function<Value(const JobConfig&)> read;
  std::vector<Option> fields;  ///< of the tables of a `records` option

  const Value& default_for(Generation generation) const {
    return generation == Generation::december_2024 ? default_2024 : default_2026;
  }
  std::string name() const { return key.substr(section.size() + 1); }

  // The description, in the order it is usually written.
  Option& help(std::string text);
  Option& in_2024(Value value);
  Option& later();
  Option& early();
  Option& own();
  Option& at_least(double minimum);
  Option& above(double minimum);
  Option& at_most(double maximum);
  Option& below(double maximum);
  Option& or_else(int64_t value);                    ///< one more value outside of the range, such as -1
  Option& choices(std::vector<std::string> values);  ///< of the text, or of every element of a list
  Option& any_case();                                ///< choices match without regard to case
  Option& formerly(std::string old_value, std::string value);
  Option& refuses(std::string value, std::string why);  ///< a value known elsewhere that this program does not offer
  Option& not_empty();
  Option& integer_spelling();  ///< a text that may be written as a bare integer: 2 for "2"
  /// A rule of its own: `wrong` returns what is wrong with a value, or nothing.
  Option& rule(std::string text, std::function<std::optional<std::string>(const Value&)> wrong);
  Option& no_effect(std::string why, std::vector<Value> harmless_values = {});
  Option& only_when(Condition when);
  Option& among_several(std::string why_idle_alone);  ///< matters only in a run of several processes
  Option& default_from(std::string other_key);        ///< an option of the same type
  /// A key of the option's tables.
  Option& field(const std::string& name, ValueType type, Value default_value, std::string help_text);

  /// Brings a value of the right type to its canonical spelling (case, former names); says nothing about its range.
  Value canonical(Value value) const;
  /// What is wrong with a value of the right type, or nothing: range, choices, own rule.
  std::optional<std::string> violation(const Value& value) const;
  /// A value of this option's type, or nothing: convert() plus the integer spelling.
  std::optional<Value> accept(const Value& value) const;
  /// "≥ 1 or -1", "a, b or c": what is allowed, for messages and tables; empty when anything is.
  std::string allowed() const;
  /// Whether `value` asks for nothing that is not offered.
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
