#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "chat_jinja_value.h"
#include "titan/text/utf8.h"

namespace titan::jinja {

Items items_of(Heap& heap, const Value& value) {
  switch (value.kind) {
    case Kind::generator:
      if (std::exchange(value.sequence->used, true)) {
        unsupported(fmt::format("using the result of the filter \"{}\" twice", value.sequence->name));
      }
      [[fallthrough]];
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      heap.charge(value.sequence->items.size() * sizeof(Value));
      heap.work(value.sequence->items.size() / 8);
      return value.sequence->items;
    case Kind::undefined:
      return {};
    case Kind::text: {
      Items items;
      const std::string_view bytes = value.text->bytes;
      for (size_t at = 0, end = 0; at < bytes.size(); at = end) {
        end = at + utf8_length(static_cast<unsigned char>(bytes[at]));
        heap.charge(sizeof(Value));
        heap.work();
        items.push_back(heap.part(value, at, end));
        items.back().safe = false;
      }
      return items;
    }
    case Kind::object: {
      Items items;
      heap.charge(value.members->size() * sizeof(Value));
      for (const auto& [key, unused] : value.members->entries()) items.push_back(key);
      return items;
    }
    case Kind::loop:
      unsupported("looping over the loop");
    default:
      misfit(value, "list");
  }
}

int64_t length_of(Heap& heap, const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return 0;
    case Kind::text: {
      heap.work(value.text->bytes.size() / 64);
      const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
      return std::count_if(value.text->bytes.begin(), value.text->bytes.end(), begins);
    }
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return std::ssize(value.sequence->items);
    case Kind::object:
      return static_cast<int64_t>(value.members->size());
    case Kind::loop:
      return std::ssize(*value.loop->items);
    default:
      misfit(value, "list");
  }
}

Value entries_of(Heap& heap, const Value& dictionary, std::string_view view) {
  Items items;
  for (const auto& [key, value] : dictionary.members->entries()) {
    heap.charge(sizeof(Value));
    items.push_back(view == "keys" ? key : view == "values" ? value : heap.sequence(Kind::tuple, {key, value}));
  }
  return heap.sequence(Kind::view, std::move(items),
                       view == "keys"     ? "dict_keys"
                       : view == "values" ? "dict_values"
                                          : "dict_items");
}

namespace {

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What Python's types offer beside their items. Those that change a value are hidden by Jinja's sandbox: nothing.
std::span<const std::string_view> attributes_of(Kind kind) {
  static constexpr std::array<std::string_view, 47> kText{
      "capitalize",   "casefold",     "center",     "count",        "encode",      "endswith",   "expandtabs",
      "find",         "format",       "index",      "isalnum",      "isalpha",     "isascii",    "isdecimal",
      "isdigit",      "isidentifier", "islower",    "isnumeric",    "isprintable", "isspace",    "istitle",
      "isupper",      "join",         "ljust",      "lower",        "lstrip",      "maketrans",  "partition",
      "removeprefix", "replace",      "rfind",      "rindex",       "rjust",       "rpartition", "rsplit",
      "rstrip",       "split",        "splitlines", "startswith",   "strip",       "swapcase",   "title",
      "translate",    "upper",        "zfill",      "removesuffix", "format_map"};
  static constexpr std::array<std::string_view, 7> kObject{"copy", "fromkeys", "get", "items", "keys", "values"};
  static constexpr std::array<std::string_view, 3> kList{"copy", "count", "index"};
  static constexpr std::array<std::string_view, 9> kNumber{"real",      "imag",       "numerator",        "denominator",
                                                           "bit_count", "bit_length", "as_integer_ratio", "conjugate",
                                                           "to_bytes"};
  static constexpr std::array<std::string_view, 7> kReal{"real", "imag",       "as_integer_ratio", "conjugate",
                                                         "hex",  "is_integer", "fromhex"};
  static constexpr std::array<std::string_view, 5> kRange{"start", "stop", "step", "count", "index"};
  static constexpr std::array<std::string_view, 2> kView{"mapping", "isdisjoint"};
  static constexpr std::array<std::string_view, 6> kFunction{"name",          "arguments", "catch_kwargs",
                                                             "catch_varargs", "caller",    "explicit_caller"};
  switch (kind) {
    case Kind::text:
      return kText;
    case Kind::object:
      return kObject;
    case Kind::list:
      return kList;
    case Kind::tuple:
      return std::span(kList).subspan(1);
    case Kind::boolean:
    case Kind::number:
      return kNumber;
    case Kind::real:
      return kReal;
    case Kind::range:
      return kRange;
    case Kind::view:
      return kView;
    case Kind::function:
      return kFunction;
    default:
      return {};
  }
}

bool changes_value(Kind kind, std::string_view name) {
  static constexpr std::array<std::string_view, 5> kObject{"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::array<std::string_view, 8> kList{"append", "clear",  "extend",  "insert",
                                                         "pop",    "remove", "reverse", "sort"};
  return (kind == Kind::object && is_one_of(name, kObject)) || (kind == Kind::list && is_one_of(name, kList));
}

Value of_loop(Heap& heap, Loop& loop, std::string_view name) {
  const auto count = std::ssize(*loop.items), at = static_cast<int64_t>(loop.at);
  if (name == "index0") return number(at);
  if (name == "index") return number(at + 1);
  if (name == "revindex") return number(count - at);
  if (name == "revindex0") return number(count - at - 1);
  if (name == "first") return boolean(at == 0);
  if (name == "last") return boolean(at + 1 == count);
  if (name == "length") return number(count);
  if (name == "depth") return number(static_cast<int64_t>(loop.depth));
  if (name == "depth0") return number(static_cast<int64_t>(loop.depth) - 1);
  if (name == "previtem" && at > 0) return (*loop.items)[loop.at - 1];
  if (name == "nextitem" && at + 1 < count) return (*loop.items)[loop.at + 1];
  if (name == "cycle" || name == "changed") {
    Value self(Kind::loop);
    self.loop = &loop;
    return heap.function({name, self});
  }
  return heap.undefined(name);
}

std::optional<Value> own_attribute(Heap& heap, const Value& of, std::string_view name) {
  if (of.kind == Kind::loop) return of_loop(heap, *of.loop, name);
  if (name.starts_with("__")) unsupported(fmt::format("the attribute \"{}\"", name));
  if (changes_value(of.kind, name)) return heap.undefined(name);
  if (of.kind == Kind::space) {
    const Value* found = of.members->find(heap, heap.view(name));
    return found ? std::optional(*found) : std::nullopt;
  }
  if (is_one_of(name, attributes_of(of.kind))) return heap.function({name, of});
  return std::nullopt;
}

}  // namespace

Value attribute(Heap& heap, const Value& of, std::string_view name) {
  if (of.kind == Kind::undefined && !name.starts_with("__")) misfit(of, "object");
  if (std::optional<Value> own = own_attribute(heap, of, name)) return *own;
  if (of.kind == Kind::object) {
    if (const Value* found = of.members->find(heap, heap.view(name))) return *found;
  }
  return heap.undefined(name);
}

Value member(Heap& heap, const Value& of, const Value& key) {
  if (of.kind == Kind::undefined) misfit(of, "object");
  if (of.kind == Kind::object && key.kind != Kind::list && key.kind != Kind::object) {
    if (const Value* found = of.members->find(heap, key)) return *found;
  }
  if (is_whole(key)) {
    const bool is_sequence = of.kind == Kind::list || of.kind == Kind::tuple || of.kind == Kind::range;
    if (is_sequence || is_text(of)) {
      const int64_t count = length_of(heap, of), at = key.number < 0 ? key.number + count : key.number;
      if (at < 0 || at >= count) return heap.undefined("an item");
      if (is_sequence) return of.sequence->items[static_cast<size_t>(at)];
      heap.work(of.text->bytes.size() / 64);
      const size_t begin = advance_characters(of.text->bytes, 0, at);
      return heap.part(of, begin, advance_characters(of.text->bytes, begin, 1));
    }
  }
  if (is_text(key)) {
    if (std::optional<Value> own = own_attribute(heap, of, key.text->bytes)) return *own;
    return heap.undefined(key.text->bytes);
  }
  return heap.undefined("an item");
}

Value slice(Heap& heap, const Value& of, const Value& from, const Value& to, const Value& step_value) {
  if (of.kind == Kind::undefined) misfit(of, "list");
  if (!is_text(of) && of.kind != Kind::list && of.kind != Kind::tuple && of.kind != Kind::range) {
    unsupported(fmt::format("a slice of a {}", type_name(of)));
  }
  const int64_t count = length_of(heap, of);
  int64_t step = step_value.kind == Kind::none ? 1 : as_number(step_value);
  if (step == 0) mistaken("a slice with step 0");
  step = std::clamp(step, -count - 1, count + 1);  // longer steps leave the sequence as well, and overflow
  const int64_t least = step > 0 ? 0 : -1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.kind == Kind::none) return otherwise;
    const int64_t at = as_number(value);
    return std::clamp<int64_t>(at < 0 ? at + count : at, least, count + least);
  };
  const int64_t begin = bound(from, step > 0 ? 0 : count - 1), end = bound(to, step > 0 ? count : -1);
  if (is_text(of) && step == 1) {
    heap.work(of.text->bytes.size() / 64);
    const size_t at = advance_characters(of.text->bytes, 0, begin);
    return heap.part(of, at, begin < end ? advance_characters(of.text->bytes, at, end - begin) : at);
  }
  const Items characters = is_text(of) ? items_of(heap, of) : Items();
  const Items& items = is_text(of) ? characters : of.sequence->items;
  Items taken;
  for (int64_t at = begin; step > 0 ? at < end : at > end; at += step) {
    heap.work();
    taken.push_back(items[static_cast<size_t>(at)]);
  }
  if (!is_text(of)) return heap.sequence(of.kind, std::move(taken));
  TracedText text;
  for (const Value& item : taken) heap.put(text, *item.text);
  Value sliced = heap.text(std::move(text));
  sliced.safe = of.safe;
  return sliced;
}

}  // namespace titan::jinja
