#include "chat_jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <optional>
#include <utility>

#include "titan/data/utf8.h"

namespace titan::jinja {
namespace {

constexpr int64_t kMostItems = 1'000'000;
constexpr size_t kLongestText = 1 << 24;

int64_t as_number(const Value& value) {
  if (value.kind != Kind::number && value.kind != Kind::boolean) misfit(value, "number");
  return value.number;
}

bool equal(const Value& a, const Value& b) {
  const auto counts = [](const Value& value) { return value.kind == Kind::boolean || value.kind == Kind::number; };
  if (counts(a) && counts(b)) return a.number == b.number;
  if (a.kind != b.kind) return false;
  if (a.kind == Kind::list || a.kind == Kind::object) unsupported("comparing lists or objects");
  return a.kind != Kind::text || a.text.text == b.text.text;
}

bool contains(const Value& all, const Value& item) {
  if (all.kind == Kind::text) return all.text.text.find(as_text(item).text) != std::string::npos;
  const auto items = items_of(all);
  return std::any_of(items->begin(), items->end(), [&](const Value& each) { return equal(each, item); });
}

Value joined(const Items& items, const TracedText& between) {
  TracedText all;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) all += between;
    all += printed(items[i]);
  }
  return text_value(std::move(all));
}

Items split(const TracedText& text, const std::string& at) {
  if (at.empty()) throw TemplateError("split at an empty text");
  Items parts;
  size_t begin = 0;
  for (size_t end = text.text.find(at); end != std::string::npos; end = text.text.find(at, begin)) {
    parts.push_back(text_value(text.part(begin, end)));
    begin = end + at.size();
  }
  parts.push_back(text_value(text.part(begin, text.text.size())));
  return parts;
}

Value in_case(TracedText text, const std::string& name) {
  bool inside = false;  // inside a word, after its first letter
  for (char& c : text.text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) unsupported(fmt::format("{} of other letters than ASCII's", name));
    const bool raises = name == "upper" || (name != "lower" && !inside);
    inside = name == "capitalize" || std::isalpha(byte) != 0;
    c = static_cast<char>(raises ? std::toupper(byte) : std::tolower(byte));
  }
  return text_value(std::move(text));
}

/// A method of str, or the filter of the same name. Nothing if unknown.
std::optional<Value> text_operation(const std::string& name, const TracedText& text, const Items& arguments) {
  const auto argument = [&](size_t i) -> const TracedText& {
    return i < arguments.size() ? as_text(arguments[i]) : throw TemplateError(name + " without an argument");
  };
  if (name == "trim" || name == "strip" || name == "lstrip" || name == "rstrip") {
    const std::string* set = arguments.empty() ? nullptr : &argument(0).text;
    const std::string_view kept = strip_characters(text.text, set, name != "rstrip", name != "lstrip");
    const auto begin = static_cast<size_t>(kept.data() - text.text.data());
    return text_value(text.part(begin, begin + kept.size()));
  }
  if (name == "startswith") return boolean(text.text.starts_with(argument(0).text));
  if (name == "endswith") return boolean(text.text.ends_with(argument(0).text));
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") return in_case(text, name);
  if (name == "split" && arguments.size() == 1) return list(split(text, argument(0).text));
  if (name == "replace" && arguments.size() == 2) return joined(split(text, argument(0).text), argument(1));
  return std::nullopt;
}

/// selectattr and rejectattr: selects by an attribute, or by a test of it.
Value selected(const Items& items, const Items& arguments, bool wanted) {
  Items taken;
  for (const Value& item : items) {
    const Value value = member(item, arguments.at(0));
    const bool holds = arguments.size() < 2
                           ? truth(value)
                           : test(as_text(arguments[1]).text, value, {arguments.begin() + 2, arguments.end()});
    if (holds == wanted) taken.push_back(item);
  }
  return list(std::move(taken));
}

Value range(const Items& bounds) {
  const int64_t from = bounds.size() > 1 ? as_number(bounds[0]) : 0, to = as_number(bounds[bounds.size() > 1 ? 1 : 0]);
  const int64_t step = bounds.size() > 2 ? as_number(bounds[2]) : 1;
  if (step == 0 || (to - from) / step > kMostItems) unsupported("a range of this length");
  Items items;
  for (int64_t at = from; step > 0 ? at < to : at > to; at += step) items.push_back(number(at));
  return list(std::move(items));
}

/// A fixed day, so that ids do not depend on the date.
Value date(const std::string& format) {
  std::tm day{};  // Friday, 26 July 2024: the fallback of Llama 3.1's and 3.2's templates
  day.tm_year = 124, day.tm_mon = 6, day.tm_mday = 26, day.tm_wday = 5, day.tm_yday = 207;
  std::array<char, 256> shown{};
  const size_t length = std::strftime(shown.data(), shown.size(), format.c_str(), &day);
  return text_value(TracedText(std::string_view(shown.data(), length)));
}

}  // namespace

// Texts.

void TracedText::append(std::string_view bytes, size_t from) {
  if (bytes.empty()) return;
  if (text.size() + bytes.size() > kLongestText) unsupported("a text of this length");
  if (spans.empty() || spans.back().from != from) spans.push_back({0, from});
  text += bytes;
  spans.back().end = text.size();
}

void TracedText::operator+=(const TracedText& more) {
  size_t begin = 0;
  for (const Span& span : more.spans) {
    append(std::string_view(more.text).substr(begin, span.end - begin), span.from);
    begin = span.end;
  }
}

TracedText TracedText::part(size_t begin, size_t end) const {
  TracedText cut;
  for (const Span& span : spans) {
    const size_t to = std::min(span.end, end);
    if (begin >= to) continue;
    cut.append(std::string_view(text).substr(begin, to - begin), span.from);
    begin = to;
  }
  return cut;
}

// Values.

void unsupported(const std::string& what) { throw TemplateError(what + " is not supported"); }

void misfit(const Value& value, const char* wanted) {
  if (value.kind == Kind::undefined) throw TemplateError(fmt::format("{} is undefined", value.text.text));
  throw TemplateError(fmt::format("a value is not of the type {}", wanted));
}

const TracedText& as_text(const Value& value) {
  if (value.kind != Kind::text) misfit(value, "text");
  return value.text;
}

bool truth(const Value& value) {
  if (value.kind == Kind::text) return !value.text.text.empty();
  if (value.kind == Kind::list) return !value.items->empty();
  if (value.kind == Kind::object) return !value.members->empty();
  return value.kind == Kind::macro || value.number != 0;
}

TracedText printed(const Value& value) {
  if (value.kind == Kind::undefined) return {};
  if (value.kind == Kind::none) return TracedText("None");
  if (value.kind == Kind::boolean) return TracedText(value.number != 0 ? "True" : "False");
  if (value.kind == Kind::number) return TracedText(std::to_string(value.number));
  if (value.kind != Kind::text) unsupported("printing a list or an object");
  return value.text;
}

std::shared_ptr<const Items> items_of(const Value& value) {
  if (value.kind == Kind::list) return value.items;
  auto items = std::make_shared<Items>();
  if (value.kind == Kind::text) {
    for (size_t at = 0, end = 0; at < value.text.text.size(); at = end) {
      end = at + utf8_length(static_cast<unsigned char>(value.text.text[at]));
      items->push_back(text_value(value.text.part(at, end)));
    }
  } else if (value.kind == Kind::object) {
    for (const auto& [key, unused] : *value.members) items->push_back(text_value(TracedText(key)));
  } else if (value.kind != Kind::undefined) {
    misfit(value, "list");
  }
  return items;
}

Value member(const Value& of, const Value& key) {
  const std::string shown = key.kind == Kind::text ? key.text.text : "an item";
  if (of.kind == Kind::undefined || of.kind == Kind::none) misfit(of, "object");
  if (of.kind == Kind::object && key.kind == Kind::text) {
    const auto found = of.members->find(shown);
    if (found != of.members->end()) return found->second;
  }
  if ((of.kind == Kind::list || of.kind == Kind::text) && key.kind == Kind::number) {
    const auto items = items_of(of);
    const int64_t count = std::ssize(*items), at = key.number < 0 ? key.number + count : key.number;
    if (at >= 0 && at < count) return (*items)[static_cast<size_t>(at)];
  }
  return {Kind::undefined, 0, TracedText(shown)};
}

Value slice(const Value& of, const std::array<Value, 3>& bounds) {
  const auto items = items_of(of);
  const auto count = std::ssize(*items);
  const int64_t step = bounds[2].kind == Kind::none ? 1 : as_number(bounds[2]);
  if (step == 0) throw TemplateError("a slice with step 0");
  const int64_t least = step > 0 ? 0 : -1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.kind == Kind::none) return otherwise;
    const int64_t at = as_number(value);
    return std::clamp<int64_t>(at < 0 ? at + count : at, least, count + least);
  };
  const int64_t to = bound(bounds[1], step > 0 ? count : -1);
  Items taken;
  for (int64_t at = bound(bounds[0], step > 0 ? 0 : count - 1); step > 0 ? at < to : at > to; at += step) {
    taken.push_back((*items)[static_cast<size_t>(at)]);
  }
  return of.kind == Kind::text ? joined(taken, {}) : list(std::move(taken));
}

// Operations by name.

Value binary(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "==") return boolean(equal(a, b));
  if (sign == "!=") return boolean(!equal(a, b));
  if (sign == "in") return boolean(contains(b, a));
  if (sign == "~") return joined({a, b}, {});
  if (sign == "+" && a.kind == Kind::text) return joined({a, text_value(as_text(b))}, {});
  if (sign == "+" && a.kind == Kind::list) {
    Items all = *a.items;
    const auto more = items_of(b);
    all.insert(all.end(), more->begin(), more->end());
    if (std::ssize(all) > kMostItems) unsupported("a list of this length");
    return list(std::move(all));
  }
  const int64_t left = as_number(a), right = as_number(b);
  if (sign == "<") return boolean(left < right);
  if (sign == ">") return boolean(left > right);
  if (sign == "<=") return boolean(left <= right);
  if (sign == ">=") return boolean(left >= right);
  if (sign == "+") return number(left + right);
  if (sign == "-") return number(left - right);
  if (right <= 0 || left < 0) unsupported("a division of or by a negative number");
  return number(left % right);
}

bool test(const std::string& name, const Value& value, const Items& arguments) {
  const Kind kind = value.kind;
  if (name == "defined") return kind != Kind::undefined;
  if (name == "undefined") return kind == Kind::undefined;
  if (name == "none") return kind == Kind::none;
  if (name == "string") return kind == Kind::text;
  if (name == "boolean") return kind == Kind::boolean;
  if (name == "number") return kind == Kind::number || kind == Kind::boolean;
  if (name == "true" || name == "false") return kind == Kind::boolean && value.number == (name == "true" ? 1 : 0);
  if (name == "mapping") return kind == Kind::object;
  if (name == "iterable" || name == "sequence") return kind == Kind::text || kind == Kind::list || kind == Kind::object;
  const bool same = name == "equalto" || name == "eq";
  if ((same || name == "ne") && arguments.size() == 1) return equal(value, arguments[0]) == same;
  if (name == "in" && arguments.size() == 1) return contains(arguments[0], value);
  unsupported(fmt::format("the test \"{}\"", name));
}

Value filter(const std::string& name, const Value& value, const Items& arguments) {
  if (name == "default" || name == "d") {
    const bool given = arguments.size() > 1 && truth(arguments[1]) ? truth(value) : value.kind != Kind::undefined;
    return given ? value : arguments.empty() ? text_value({}) : arguments[0];
  }
  if (name == "string" || name == "safe") return text_value(printed(value));
  if (value.kind != Kind::list && value.kind != Kind::object) {
    if (std::optional<Value> made = text_operation(name, printed(value), arguments)) return *made;
  }
  const auto held = items_of(value);
  const Items& items = *held;
  if (name == "length" || name == "count") return number(std::ssize(items));
  if (name == "list") return list(items);
  if (name == "reverse") return list({items.rbegin(), items.rend()});
  if (name == "first" || name == "last") {
    if (items.empty()) return {Kind::undefined, 0, TracedText(name)};
    return name == "first" ? items.front() : items.back();
  }
  if (name == "join") return joined(items, arguments.empty() ? TracedText() : as_text(arguments[0]));
  if ((name == "selectattr" || name == "rejectattr") && !arguments.empty()) {
    return selected(items, arguments, name == "selectattr");
  }
  unsupported(fmt::format("the filter \"{}\"", name));
}

Value method(const std::string& name, const Value& of, const Items& arguments) {
  if (of.kind == Kind::text) {
    if (std::optional<Value> made = text_operation(name, of.text, arguments)) return *made;
  } else if (of.kind == Kind::object && name == "get" && !arguments.empty()) {
    const Value found = member(of, arguments[0]);
    return found.kind != Kind::undefined ? found : arguments.size() > 1 ? arguments[1] : Value{Kind::none};
  } else if (of.kind == Kind::undefined) {
    misfit(of, "object");
  }
  unsupported(fmt::format("the method \"{}\"", name));
}

Value call(const std::string& name, const Items& arguments, Members named) {
  if (name == "namespace") return object(std::move(named));
  if (name == "range" && !arguments.empty()) return range(arguments);
  if (name == "strftime_now" && arguments.size() == 1) return date(as_text(arguments[0]).text);
  if (name == "raise_exception" && arguments.size() == 1) {
    throw TemplateError(printed(arguments[0]).text, TemplateError::Kind::raised);
  }
  unsupported(fmt::format("the function \"{}\"", name));
}

}  // namespace titan::jinja
