#include "chat_jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "chat_jinja_text.h"
#include "titan/text/utf8.h"

namespace titan::jinja {
namespace {

void check_depth(int depth) {
  if (depth > kDeepestValue) unsupported("a value nested this deep");
}

uint64_t mixed(uint64_t hash, uint64_t more) { return (hash ^ more) * 0x9E3779B97F4A7C15 + (hash >> 29); }

}  // namespace

// Errors and types.

void unsupported(const std::string& what) {
  throw TemplateError(what + " is not supported", TemplateError::Kind::unsupported);
}

void mistaken(const std::string& what) { throw TemplateError(what); }

void misfit(const Value& value, const char* wanted) {
  if (value.kind == Kind::undefined) {
    const std::string_view name = value.text ? value.text->bytes : "a value";
    throw TemplateError(fmt::format("{} is undefined", name), TemplateError::Kind::mistaken, name);
  }
  mistaken(fmt::format("a value is not of the type {}", wanted));
}

const char* type_name(const Value& value) {
  static constexpr std::array<const char*, 15> kNames{"undefined", "none",   "boolean",   "number", "real",
                                                      "text",      "list",   "tuple",     "range",  "view",
                                                      "generator", "object", "namespace", "loop",   "function"};
  if (value.kind == Kind::function && value.function->name == kUnreadable) return kUnreadable.data();
  return kNames[static_cast<size_t>(value.kind)];
}

Value real(double value) {
  Value made(Kind::real);
  made.real = value;
  return made;
}

bool is_text(const Value& value) { return value.kind == Kind::text; }
bool is_whole(const Value& value) { return value.kind == Kind::number || value.kind == Kind::boolean; }
bool is_number(const Value& value) { return is_whole(value) || value.kind == Kind::real; }

const Text& as_text(const Value& value) {
  if (value.kind != Kind::text) misfit(value, "text");
  return *value.text;
}

int64_t as_number(const Value& value) {
  if (!is_whole(value)) misfit(value, "number");
  return value.number;
}

double as_real(const Value& value) {
  if (value.kind == Kind::real) return value.real;
  return static_cast<double>(as_number(value));
}

bool truth(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::number:
      return value.number != 0;
    case Kind::real:
      return value.real != 0;
    case Kind::text:
      return !value.text->bytes.empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return !value.sequence->items.empty();
    case Kind::object:
      return value.members->size() > 0;
    case Kind::generator:
    case Kind::space:
    case Kind::loop:
    case Kind::function:
      return true;
  }
  return true;
}

// Comparisons.

namespace {

int compare_numbers(const Value& a, const Value& b) {
  // 64 bits of mantissa: exact for both kinds, as Python's comparison is.
  const auto exact = [](const Value& value) {
    return value.kind == Kind::real ? static_cast<long double>(value.real) : static_cast<long double>(value.number);
  };
  const long double left = exact(a), right = exact(b);
  return left < right ? -1 : left > right ? 1 : left == right ? 0 : 2;
}

bool equal_members(Heap& heap, const Dictionary& a, const Dictionary& b, int depth) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const auto& entry) {
    const Value* other = b.find(heap, entry.first);
    return other && equal(heap, entry.second, *other, depth + 1);
  });
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b, int depth) {
  heap.work();
  check_depth(depth);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::text:
      heap.work(std::min(a.text->bytes.size(), b.text->bytes.size()) / 64);
      return a.text->bytes == b.text->bytes;
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
      return std::equal(a.sequence->items.begin(), a.sequence->items.end(), b.sequence->items.begin(),
                        b.sequence->items.end(),
                        [&](const Value& x, const Value& y) { return equal(heap, x, y, depth + 1); });
    case Kind::object:
      return a.members == b.members || equal_members(heap, *a.members, *b.members, depth);
    case Kind::view:
      unsupported("comparing the keys, values or items of dictionaries");
    case Kind::function:
      unsupported("comparing functions");
    case Kind::generator:
      return a.sequence == b.sequence;
    case Kind::space:
      return a.members == b.members;
    case Kind::loop:
      return a.loop == b.loop;
    default:
      return true;
  }
}

int compare(Heap& heap, const Value& a, const Value& b, int depth) {
  heap.work();
  check_depth(depth);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b);
  if (a.kind == Kind::undefined || b.kind == Kind::undefined) misfit(a.kind == Kind::undefined ? a : b, "number");
  if (a.kind == b.kind && is_text(a)) {
    heap.work(std::min(a.text->bytes.size(), b.text->bytes.size()) / 64);
    const int order = a.text->bytes.compare(b.text->bytes);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.kind == b.kind && (a.kind == Kind::list || a.kind == Kind::tuple)) {
    const Items &left = a.sequence->items, &right = b.sequence->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(heap, left[i], right[i], depth + 1)) return compare(heap, left[i], right[i], depth + 1);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  if (a.kind == Kind::view || b.kind == Kind::view) unsupported("an order of the keys of dictionaries");
  mistaken(fmt::format("a {} and a {} have no order", type_name(a), type_name(b)));
}

uint64_t hash_of(const Value& value, int depth) {
  check_depth(depth);
  switch (value.kind) {
    case Kind::text:
      return std::hash<std::string_view>()(value.text->bytes);
    case Kind::boolean:
    case Kind::number:
      return mixed(1, static_cast<uint64_t>(value.number));
    case Kind::real:
      // A key equals 2 and 2.0, so they share a hash.
      if (std::abs(value.real) < 0x1p62 && value.real == std::floor(value.real)) {
        return mixed(1, static_cast<uint64_t>(static_cast<int64_t>(value.real)));
      }
      return std::hash<double>()(value.real);
    case Kind::tuple: {
      uint64_t hash = 3;
      for (const Value& item : value.sequence->items) hash = mixed(hash, hash_of(item, depth + 1));
      return hash;
    }
    case Kind::none:
    case Kind::undefined:
      return static_cast<uint64_t>(value.kind) + 17;
    case Kind::list:
    case Kind::object:
      mistaken(fmt::format("a {} cannot be a key", type_name(value)));
    default:
      unsupported(fmt::format("a {} as a key", type_name(value)));
  }
}

bool contains(Heap& heap, const Value& all, const Value& item) {
  if (is_text(all)) {
    const Text& part = as_text(item);
    heap.work(all.text->bytes.size() / 16);
    return all.text->bytes.find(part.bytes) != std::string::npos;
  }
  if (all.kind == Kind::object) return all.members->find(heap, item) != nullptr;
  // Called for its error alone: Python looks the item up among the keys, and a list has no hash.
  if (all.kind == Kind::view && all.sequence->name == "dict_keys") hash_of(item);
  const Items items = items_of(heap, all);
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return equal(heap, each, item); });
}

// Printing.

std::string shown_real(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == text.npos) text += ".0";
  return text;
}

void print(Heap& heap, const Value& value, TracedText& to) {
  if (is_text(value)) return heap.put(to, *value.text);
  if (value.kind == Kind::undefined) return;
  represent(heap, value, to);
}

namespace {

void represent_items(Heap& heap, const Items& items, std::string_view begin, std::string_view end, TracedText& to,
                     int depth) {
  heap.put(to, begin);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) heap.put(to, ", ");
    represent(heap, items[i], to, depth + 1);
  }
  heap.put(to, end);
}

void represent_range(Heap& heap, const Sequence& range, TracedText& to) {
  const auto& [from, end, step] = range.bounds;
  if (step == 0) unsupported("printing a part of a range");
  heap.put(to, step == 1 ? fmt::format("range({}, {})", from, end) : fmt::format("range({}, {}, {})", from, end, step));
}

}  // namespace

void represent(Heap& heap, const Value& value, TracedText& to, int depth) {
  heap.work();
  check_depth(depth);
  switch (value.kind) {
    case Kind::undefined:
      return heap.put(to, "Undefined");
    case Kind::none:
      return heap.put(to, "None");
    case Kind::boolean:
      return heap.put(to, value.number != 0 ? "True" : "False");
    case Kind::number:
      return heap.put(to, std::to_string(value.number));
    case Kind::real:
      return heap.put(to, shown_real(value.real));
    case Kind::text:
      if (value.safe) unsupported("printing a list that holds a text marked as safe");
      return quote(heap, *value.text, to);
    case Kind::list:
      return represent_items(heap, value.sequence->items, "[", "]", to, depth);
    case Kind::tuple:
      return represent_items(heap, value.sequence->items, "(", value.sequence->items.size() == 1 ? ",)" : ")", to,
                             depth);
    case Kind::view:
      heap.put(to, value.sequence->name);
      return represent_items(heap, value.sequence->items, "([", "])", to, depth);
    case Kind::range:
      return represent_range(heap, *value.sequence, to);
    case Kind::object:
    case Kind::space: {
      const char* separator = value.kind == Kind::space ? "<Namespace {" : "{";
      for (const auto& [key, member] : value.members->entries()) {
        heap.put(to, std::exchange(separator, ", "));
        represent(heap, key, to, depth + 1);
        heap.put(to, ": ");
        represent(heap, member, to, depth + 1);
      }
      if (value.members->size() == 0) heap.put(to, separator);
      return heap.put(to, value.kind == Kind::space ? "}>" : "}");
    }
    case Kind::generator:
    case Kind::loop:
    case Kind::function:
      unsupported(fmt::format("printing a {}", type_name(value)));
  }
}

Value printed(Heap& heap, const Value& value) {
  if (is_text(value)) return value;
  TracedText text;
  print(heap, value, text);
  return heap.text(std::move(text));
}

}  // namespace titan::jinja
