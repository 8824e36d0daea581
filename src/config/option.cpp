#include "titan/config/option.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/text.h"

namespace titan {
namespace {

/// A bound in its shortest form: 1, 0.5, 1e-8.
std::string bound_text(double bound) { return fmt::format("{}", bound); }

}  // namespace

Option& Option::help(std::string text) {
  description = std::move(text);
  return *this;
}
Option& Option::in_2024(Value value) {
  default_2024 = std::move(value);
  return *this;
}
Option& Option::later() {
  era = Era::later;
  return *this;
}
Option& Option::early() {
  era = Era::early;
  return *this;
}
Option& Option::own() {
  era = Era::own;
  return *this;
}
Option& Option::at_least(double minimum) {
  minimum_ = minimum;
  return *this;
}
Option& Option::above(double minimum) {
  minimum_ = minimum;
  minimum_excluded_ = true;
  return *this;
}
Option& Option::at_most(double maximum) {
  maximum_ = maximum;
  return *this;
}
Option& Option::below(double maximum) {
  maximum_ = maximum;
  maximum_excluded_ = true;
  return *this;
}
Option& Option::or_else(int64_t value) {
  or_else_ = value;
  return *this;
}
Option& Option::choices(std::vector<std::string> values) {
  choices_ = std::move(values);
  return *this;
}
Option& Option::any_case() {
  any_case_ = true;
  return *this;
}
Option& Option::formerly(std::string old_value, std::string value) {
  former_values_.emplace_back(std::move(old_value), std::move(value));
  return *this;
}
Option& Option::refuses(std::string value, std::string why) {
  refused_.emplace_back(std::move(value), std::move(why));
  return *this;
}
Option& Option::not_empty() {
  not_empty_ = true;
  return *this;
}
Option& Option::integer_spelling() {
  integer_spelling_ = true;
  return *this;
}
Option& Option::rule(std::string text, std::function<std::optional<std::string>(const Value&)> wrong) {
  rule_text_ = std::move(text);
  rule_ = std::move(wrong);
  return *this;
}
Option& Option::no_effect(std::string why, std::vector<Value> harmless_values) {
  idle = std::move(why);
  harmless = std::move(harmless_values);
  return *this;
}
Option& Option::only_when(Condition when) {
  condition = std::move(when);
  return *this;
}
Option& Option::among_several(std::string why_idle_alone) {
  idle_alone = std::move(why_idle_alone);
  return *this;
}
Option& Option::default_from(std::string other_key) {
  follows = std::move(other_key);
  return *this;
}
Option& Option::field(const std::string& name, ValueType field_type, Value default_value, std::string help_text) {
  Option field;
  field.section = key;
  field.key = key + "." + name;
  field.type = field_type;
  field.default_2024 = field.default_2026 = std::move(default_value);
  field.description = std::move(help_text);
  fields.push_back(std::move(field));
  return *this;
}

Value Option::canonical(Value value) const {
  auto bring = [this](std::string& word) {
    auto same = [&](const std::string& a, const std::string& b) {
      return any_case_ ? to_lower(a) == to_lower(b) : a == b;
    };
    for (const auto& [old_value, current] : former_values_) {
      if (same(word, old_value)) word = current;
    }
    for (const std::string& choice : choices_) {
      if (same(word, choice)) word = choice;
    }
  };
  if (auto* word = std::get_if<std::string>(&value)) bring(*word);
  if (auto* words = std::get_if<std::vector<std::string>>(&value)) std::for_each(words->begin(), words->end(), bring);
  return value;
}

std::optional<std::string> Option::range_violation(double number) const {
  if (or_else_ && number == static_cast<double>(*or_else_)) return std::nullopt;
  bool too_small = minimum_ && (minimum_excluded_ ? number <= *minimum_ : number < *minimum_);
  bool too_large = maximum_ && (maximum_excluded_ ? number >= *maximum_ : number > *maximum_);
  if (!too_small && !too_large) return std::nullopt;
  return fmt::format("{} = {} is out of range", key, bound_text(number));
}

std::optional<std::string> Option::choice_violation(const std::string& word) const {
  for (const auto& [value, why] : refused_) {
    if (to_lower(value) == to_lower(word)) return fmt::format("{} = \"{}\" is not offered here: {}", key, value, why);
  }
  if (not_empty_ && trim(word).empty()) return fmt::format("{} is empty", key);
  bool known = choices_.empty() || std::find(choices_.begin(), choices_.end(), word) != choices_.end();
  if (known) return std::nullopt;
  std::vector<std::string> close = nearest(word, choices_, 1);
  std::string hint = close.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", close.front());
  return fmt::format("{} = \"{}\" is not an allowed value{}", key, word, hint);
}

std::optional<std::string> Option::violation(const Value& value) const {
  std::optional<std::string> wrong;
  if (const auto* integer = std::get_if<int64_t>(&value)) wrong = range_violation(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) wrong = range_violation(*number);
  if (const auto* word = std::get_if<std::string>(&value)) wrong = choice_violation(*word);
  if (const auto* words = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& word : *words) wrong = wrong ? wrong : choice_violation(word);
  }
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value)) {
    for (int64_t number : *numbers) wrong = wrong ? wrong : range_violation(static_cast<double>(number));
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
    for (double number : *numbers) wrong = wrong ? wrong : range_violation(number);
  }
  bool given = !std::holds_alternative<std::monostate>(value);
  if (!wrong && rule_ && given) wrong = rule_(value);
  return wrong;
}

std::optional<Value> Option::accept(const Value& value) const {
  const auto* integer = std::get_if<int64_t>(&value);
  if (integer && integer_spelling_) return Value(fmt::format("{}", *integer));
  return convert(type, value);
}

std::string Option::allowed() const {
  std::vector<std::string> parts;
  if (!choices_.empty()) parts.push_back(join(choices_, ", "));
  if (minimum_ && maximum_) {
    parts.push_back(fmt::format("{} {} and {} {}", minimum_excluded_ ? ">" : "≥", bound_text(*minimum_),
                                maximum_excluded_ ? "<" : "≤", bound_text(*maximum_)));
  } else if (minimum_) {
    parts.push_back(fmt::format("{} {}", minimum_excluded_ ? ">" : "≥", bound_text(*minimum_)));
  } else if (maximum_) {
    parts.push_back(fmt::format("{} {}", maximum_excluded_ ? "<" : "≤", bound_text(*maximum_)));
  }
  if (!rule_text_.empty()) parts.push_back(rule_text_);
  std::string text = join(parts, "; ");
  if (or_else_) text += fmt::format(" or {}", *or_else_);
  if (text.empty() && not_empty_) text = "not empty";
  return text;
}

bool Option::is_harmless(const Value& value) const {
  if (harmless.empty()) return true;
  bool is_default = value == default_2024 || value == default_2026;
  return is_default || std::find(harmless.begin(), harmless.end(), value) != harmless.end();
}

}  // namespace titan
