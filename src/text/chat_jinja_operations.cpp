#include "chat_jinja_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "chat_jinja_text.h"

namespace titan::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // the limit of Jinja's sandbox, in which transformers runs templates

[[noreturn]] void overflow() { unsupported("a whole number beyond 64 bits"); }

Value whole_arithmetic(std::string_view sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool over = false;
  if (sign == "+") {
    over = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    over = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    over = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    if (b < 0) {
      if (a == 0) mistaken("0 to a negative power");
      return real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = 1;
    for (int64_t i = 0; i < b && !over && a != 1; ++i) {
      if (a == 0) return number(0);
      if (a == -1) return number(b % 2 == 0 ? 1 : -1);
      over = __builtin_mul_overflow(result, a, &result);
    }
  } else {
    if (b == 0) mistaken("a division by zero");
    if (sign == "/") return real(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) {  // the one quotient that overflows
      if (sign == "%") return number(0);
      over = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {  // C++ rounds to zero, Python down
      const int64_t rest = a % b;
      const bool down = rest != 0 && (rest < 0) != (b < 0);
      result = sign == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  if (over) overflow();
  return number(result);
}

Value real_arithmetic(std::string_view sign, double a, double b) {
  if (sign == "+") return real(a + b);
  if (sign == "-") return real(a - b);
  if (sign == "*") return real(a * b);
  if (sign == "**") {
    if (a == 0 && b < 0) mistaken("0 to a negative power");
    if (a < 0 && b != std::floor(b)) unsupported("a power that is no real number");
    const double power = std::pow(a, b);
    if (std::isinf(power) && !std::isinf(a) && !std::isinf(b)) mistaken("a power that is too large");
    return real(power);
  }
  if (b == 0) mistaken("a division by zero");
  if (sign == "/") return real(a / b);
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b, quotient -= 1;
  if (sign == "%") return real(rest != 0 ? rest : std::copysign(0.0, b));
  if (quotient == 0) return real(std::copysign(0.0, a / b));
  const double below = std::floor(quotient);
  return real(quotient - below > 0.5 ? below + 1 : below);
}

Value repeated_items(Heap& heap, const Value& of, int64_t times) {
  Items all;
  for (int64_t i = 0; i < times && !of.sequence->items.empty(); ++i) {
    heap.work(1 + of.sequence->items.size() / 8);
    heap.charge(of.sequence->items.size() * sizeof(Value));
    all.insert(all.end(), of.sequence->items.begin(), of.sequence->items.end());
  }
  return heap.sequence(of.kind, std::move(all));
}

bool is_list(const Value& value) { return value.kind == Kind::list || value.kind == Kind::tuple; }

Value sum(Heap& heap, const Value& a, const Value& b) {
  if (is_text(a)) {
    as_text(b);
    const bool safe = a.safe || b.safe;
    const Value left = safe && !a.safe ? escaped(heap, a) : a, right = safe && !b.safe ? escaped(heap, b) : b;
    Value made = joined(heap, {left, right});
    made.safe = safe;
    return made;
  }
  if (is_list(a)) {
    if (b.kind != a.kind) misfit(b, type_name(a));
    heap.charge((a.sequence->items.size() + b.sequence->items.size()) * sizeof(Value));
    Items all = a.sequence->items;
    all.insert(all.end(), b.sequence->items.begin(), b.sequence->items.end());
    return heap.sequence(a.kind, std::move(all));
  }
  misfit(is_number(a) ? b : a, "number");
}

}  // namespace

Value binary(Heap& heap, std::string_view sign, const Value& a, const Value& b) {
  if (sign == "==") return boolean(equal(heap, a, b));
  if (sign == "!=") return boolean(!equal(heap, a, b));
  if (sign == "in") return boolean(contains(heap, b, a));
  if (sign == "not in") return boolean(!contains(heap, b, a));
  if (sign == "~") return joined(heap, {a, b});
  if (sign == "<") return boolean(compare(heap, a, b) == -1);
  if (sign == ">") return boolean(compare(heap, a, b) == 1);
  if (sign == "<=" || sign == ">=") {
    const int order = compare(heap, a, b);
    return boolean(order == 0 || order == (sign == "<=" ? -1 : 1));
  }
  if (is_whole(a) && is_whole(b)) return whole_arithmetic(sign, a.number, b.number);
  if (is_number(a) && is_number(b)) return real_arithmetic(sign, as_real(a), as_real(b));
  if (sign == "+") return sum(heap, a, b);
  if (sign == "*" && (is_whole(a) || is_whole(b))) {
    const Value &of = is_whole(a) ? b : a, &times = is_whole(a) ? a : b;
    if (is_text(of)) return repeated(heap, of, times.number);
    if (is_list(of)) return repeated_items(heap, of, times.number);
  }
  if (sign == "%" && is_text(a)) unsupported("formatting a text with %");
  if (a.kind == Kind::view || b.kind == Kind::view) unsupported("arithmetic with the keys of dictionaries");
  misfit(is_number(a) ? b : a, "number");
}

Value negative(const Value& value) {
  if (value.kind == Kind::real) return real(-value.real);
  return whole_arithmetic("-", 0, as_number(value));
}

// Tests.

namespace {

constexpr std::array<std::string_view, 21> kTests{"defined",  "undefined", "none", "string", "boolean", "number",
                                                  "integer",  "float",     "true", "false",  "mapping", "iterable",
                                                  "sequence", "callable",  "odd",  "even",   "lower",   "upper",
                                                  "escaped",  "filter",    "test"};
constexpr std::array<std::string_view, 18> kTestsOfTwo{
    "divisibleby", "in", "sameas", "eq", "equalto", "==",          "ne", "!=", "lt",
    "lessthan",    "<",  "le",     "<=", "gt",      "greaterthan", ">",  "ge", ">="};

template <size_t size>
bool is_in(std::string_view name, const std::array<std::string_view, size>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view comparison_of(std::string_view test) {
  static constexpr std::array<std::array<std::string_view, 2>, 9> kSigns{{{"eq", "=="},
                                                                          {"equalto", "=="},
                                                                          {"ne", "!="},
                                                                          {"lt", "<"},
                                                                          {"lessthan", "<"},
                                                                          {"le", "<="},
                                                                          {"gt", ">"},
                                                                          {"greaterthan", ">"},
                                                                          {"ge", ">="}}};
  for (const auto& [name, sign] : kSigns) {
    if (name == test) return sign;
  }
  return test;
}

bool is_same(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.number == b.number;
    case Kind::list:
    case Kind::range:
      return a.sequence == b.sequence;
    case Kind::object:
    case Kind::space:
      return a.members == b.members;
    default:
      unsupported(fmt::format("asking whether a {} is the same object as another", type_name(a)));
  }
}

bool test_of_two(Heap& heap, std::string_view name, const Value& value, const Value& other) {
  if (name == "divisibleby") return !truth(binary(heap, "%", value, other));
  if (name == "in") return contains(heap, other, value);
  if (name == "sameas") return is_same(value, other);
  return truth(binary(heap, comparison_of(name), value, other));
}

bool test_of_one(Heap& heap, std::string_view name, const Value& value) {
  const Kind kind = value.kind;
  if (name == "none") return kind == Kind::none;
  if (name == "string") return kind == Kind::text;
  if (name == "boolean") return kind == Kind::boolean;
  if (name == "number") return is_number(value);
  if (name == "integer") return kind == Kind::number;
  if (name == "float") return kind == Kind::real;
  if (name == "true" || name == "false") return kind == Kind::boolean && value.number == (name == "true" ? 1 : 0);
  if (name == "mapping") return kind == Kind::object;
  const bool has_items = kind == Kind::text || kind == Kind::list || kind == Kind::tuple || kind == Kind::range ||
                         kind == Kind::object || kind == Kind::undefined;
  if (name == "iterable") return has_items || kind == Kind::view || kind == Kind::generator || kind == Kind::loop;
  if (name == "sequence") return has_items;
  if (name == "callable") return kind == Kind::function || kind == Kind::loop || kind == Kind::undefined;
  if (name == "odd") return truth(binary(heap, "==", binary(heap, "%", value, number(2)), number(1)));
  if (name == "even") return truth(binary(heap, "==", binary(heap, "%", value, number(2)), number(0)));
  if (name == "lower" || name == "upper")
    return truth(text_method(heap, name == "lower" ? "islower" : "isupper", printed(heap, value), {}, {}));
  if (name == "escaped") return value.safe;
  hash_of(value);  // for its error: Jinja looks the name up in a dictionary, and a list has no hash
  if (!is_text(value)) return false;
  return name == "filter" ? is_filter(value.text->bytes) : is_test(value.text->bytes);
}

}  // namespace

bool is_test(std::string_view name) { return is_in(name, kTests) || is_in(name, kTestsOfTwo); }

bool test(Heap& heap, std::string_view name, const Value& value, const Items& arguments) {
  heap.work();
  if (name == "defined" || name == "undefined") return (value.kind == Kind::undefined) == (name == "undefined");
  if (is_in(name, kTests)) {
    if (!arguments.empty()) mistaken(fmt::format("the test \"{}\" takes no argument", name));
    return test_of_one(heap, name, value);
  }
  if (is_in(name, kTestsOfTwo)) {
    if (arguments.size() != 1) mistaken(fmt::format("the test \"{}\" takes one argument", name));
    return test_of_two(heap, name, value, arguments[0]);
  }
  unsupported(fmt::format("the test \"{}\"", name));
}

// Functions and methods.

namespace {

Value range(Heap& heap, const Items& bounds) {
  if (bounds.empty() || bounds.size() > 3) mistaken("range takes one to three numbers");
  const int64_t from = bounds.size() > 1 ? as_number(bounds[0]) : 0, to = as_number(bounds[bounds.size() > 1 ? 1 : 0]);
  const int64_t step = bounds.size() > 2 ? as_number(bounds[2]) : 1;
  if (step == 0) mistaken("a range with step 0");
  Items items;
  for (int64_t at = from; step > 0 ? at < to : at > to;) {
    if (std::ssize(items) == kLongestRange) mistaken("a range of more than 100,000 numbers");
    heap.work();
    heap.charge(sizeof(Value));
    items.push_back(number(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  const Value made = heap.sequence(Kind::range, std::move(items), "range");
  made.sequence->bounds = {from, to, step};
  return made;
}

/// Fills a dictionary or namespace as Python's dict() does.
Value made_of(Heap& heap, Kind kind, const Items& arguments, const Named& named) {
  if (arguments.size() > 1) mistaken("dict and namespace take one value and named ones");
  Value made = heap.dictionary(kind);
  if (arguments.size() == 1 && arguments[0].kind == Kind::object) {
    for (const auto& [key, value] : arguments[0].members->entries()) made.members->set(heap, key, value);
  } else if (arguments.size() == 1) {
    for (const Value& pair : items_of(heap, arguments[0])) {
      const Items both = items_of(heap, pair);
      if (both.size() != 2) mistaken("dict and namespace are made of pairs");
      made.members->set(heap, both[0], both[1]);
    }
  }
  for (const auto& [key, value] : named) made.members->set(heap, heap.view(key), value);
  if (kind != Kind::space) return made;
  for (const auto& [key, value] : made.members->entries()) {
    if (is_text(key) && key.text->bytes.starts_with('_')) mistaken("a namespace has no names that begin with _");
  }
  return made;
}

/// A fixed day, so that ids do not depend on the date of a run.
Value date(Heap& heap, std::string_view format) {
  std::tm day{};  // Friday, 26 July 2024: the fallback of Llama 3.1's and 3.2's templates
  day.tm_year = 124, day.tm_mon = 6, day.tm_mday = 26, day.tm_wday = 5, day.tm_yday = 207;
  day.tm_isdst = -1;  // as of Python's datetime.now(), which has no zone: %Z and %z are empty
  const std::string pattern(format);
  for (size_t at = pattern.find('%'); at < pattern.size(); at = pattern.find('%', at + 2)) {
    if (at + 1 == pattern.size() ||
        std::string_view("aAbBcdDeFHIjmMnprRStTuUVwWxXyYGhC%").find(pattern[at + 1]) == std::string_view::npos) {
      unsupported(fmt::format("the date format \"{}\"", pattern));
    }
  }
  std::array<char, 512> shown{};
  const size_t length = std::strftime(shown.data(), shown.size(), pattern.c_str(), &day);
  if (length == 0 && !pattern.empty()) unsupported(fmt::format("a date format of {} characters", pattern.size()));
  return heap.text([&] {
    TracedText text;
    heap.put(text, std::string_view(shown.data(), length));
    return text;
  }());
}

Value method_of_dictionary(Heap& heap, std::string_view name, const Value& of, const Items& arguments) {
  if (name == "get" && (arguments.size() == 1 || arguments.size() == 2)) {
    const Value* found = of.members->find(heap, arguments[0]);
    return found ? *found : arguments.size() == 2 ? arguments[1] : none();
  }
  if (!arguments.empty()) unsupported(fmt::format("the method \"{}\" with these arguments", name));
  if (name == "keys" || name == "values" || name == "items") return entries_of(heap, of, name);
  if (name == "copy") return made_of(heap, Kind::object, {of}, {});
  unsupported(fmt::format("the method \"{}\"", name));
}

Value method_of_list(Heap& heap, std::string_view name, const Value& of, const Items& arguments) {
  const Items items = items_of(heap, of);
  if (name == "copy" && arguments.empty()) return heap.list(items);
  if (arguments.size() != 1 || name == "copy") unsupported(fmt::format("the method \"{}\" with these arguments", name));
  const auto same = [&](const Value& each) { return equal(heap, each, arguments[0]); };
  if (name == "count") return number(std::count_if(items.begin(), items.end(), same));
  const auto at = std::find_if(items.begin(), items.end(), same);
  if (at == items.end()) mistaken("a value is not in the list");
  return number(at - items.begin());
}

Value method_of_loop(Heap& heap, std::string_view name, const Loop& loop, const Items& arguments) {
  if (name == "cycle") {
    if (arguments.empty()) mistaken("loop.cycle takes values");
    return arguments[loop.at % arguments.size()];
  }
  static_cast<void>(heap);
  unsupported("loop.changed");
}

}  // namespace

bool is_global(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kGlobals{
      "range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now", "self"};
  return is_in(name, kGlobals);
}

Value call_built_in(Heap& heap, const Function& function, const Items& arguments, const Named& named) {
  heap.work();
  const std::string_view name = function.name;
  const Value& of = function.self;
  if (of.kind == Kind::text) return text_method(heap, name, of, arguments, named);
  if (name == "dict" || name == "namespace") {
    return made_of(heap, name == "dict" ? Kind::object : Kind::space, arguments, named);
  }
  const bool has_names = !named.empty();
  if (of.kind == Kind::object && !has_names) return method_of_dictionary(heap, name, of, arguments);
  if (is_list(of) && !has_names) return method_of_list(heap, name, of, arguments);
  if (of.kind == Kind::loop && !has_names) return method_of_loop(heap, name, *of.loop, arguments);
  if (of.kind != Kind::undefined) unsupported(fmt::format("the attribute \"{}\" of a {}", name, type_name(of)));
  if (name == "range" && !has_names) return range(heap, arguments);
  // transformers calls their arguments format and message.
  const Items& given = has_names ? Items{named[0].second} : arguments;
  if (given.size() + (has_names ? arguments.size() + named.size() - 1 : 0) == 1) {
    if (name == "strftime_now") return date(heap, as_text(given[0]).bytes);
    if (name == "raise_exception") {
      TracedText text;
      print(heap, given[0], text);
      throw TemplateError(text.text, TemplateError::Kind::raised);
    }
  }
  unsupported(fmt::format("the function \"{}\" with these arguments", name));
}

}  // namespace titan::jinja
