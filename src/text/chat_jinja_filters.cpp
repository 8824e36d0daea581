// Jinja's filters.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "chat_jinja_numbers.h"
#include "chat_jinja_operations.h"
#include "chat_jinja_text.h"
#include "titan/text/utf8.h"

namespace titan::jinja {
namespace {

/// The arguments of one filter, by position or name.
class Arguments {
 public:
  Arguments(Heap& heap, std::string_view filter, const Items& items, const Named& named,
            std::vector<std::string_view> names)
      : heap(heap), filter_(filter), values_(names.size()) {
    if (items.size() > names.size()) mistaken(fmt::format("the filter \"{}\" takes fewer arguments", filter));
    for (size_t i = 0; i < items.size(); ++i) values_[i] = items[i];
    for (const auto& [name, value] : named) {
      const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      if (at == names.size()) mistaken(fmt::format("the filter \"{}\" has no argument \"{}\"", filter, name));
      if (values_[at]) mistaken(fmt::format("the filter \"{}\" gets \"{}\" twice", filter, name));
      values_[at] = value;
    }
  }

  bool has(size_t i) const { return values_[i].has_value(); }
  Value value(size_t i, const Value& otherwise = none()) const { return values_[i].value_or(otherwise); }
  const Value& needed(size_t i) const {
    if (!values_[i]) mistaken(fmt::format("the filter \"{}\" lacks an argument", filter_));
    return *values_[i];
  }
  bool flag(size_t i, bool otherwise = false) const { return values_[i] ? truth(*values_[i]) : otherwise; }
  int64_t whole(size_t i, int64_t otherwise) const { return values_[i] ? as_number(*values_[i]) : otherwise; }

  Heap& heap;

 private:
  std::string_view filter_;
  std::vector<std::optional<Value>> values_;
};

/// "a.0.b": an attribute of an attribute. Undefined where one is missing, unless that has an attribute itself.
Value by_path(Heap& heap, Value value, const Value& path) {
  if (path.kind == Kind::none) return value;
  if (is_whole(path)) return member(heap, value, path);
  const Text dot{".", {}};
  for (const Value& name : split(heap, path, &dot)) {
    const std::string_view text = name.text->bytes;
    int64_t index = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool is_index = read.ec == std::errc() && read.ptr == text.data() + text.size() && text[0] != '-';
    value = member(heap, value, is_index ? number(index) : name);
  }
  return value;
}

/// What texts are sorted and compared by: without regard to case unless asked for.
Value sort_key(Heap& heap, const Value& value, bool case_sensitive) {
  return is_text(value) && !case_sensitive ? in_case(heap, value, "lower") : value;
}

/// `as_lists`: as Python orders lists of one, so that equal keys need no order.
void sort_pairs(Heap& heap, std::vector<std::pair<Value, Value>>& keyed, bool reverse, bool as_lists = false) {
  for (const auto& [key, value] : keyed) {
    if (key.kind == Kind::real && std::isnan(key.real)) unsupported("sorting what is not a number");
  }
  const auto before = [&](const auto& a, const auto& b) {
    return !(as_lists && equal(heap, a.first, b.first)) && compare(heap, a.first, b.first) == -1;
  };
  // Sorts by the opposite comparison instead of reversing the result: Python keeps the order of equal items in both
  // directions.
  if (reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return before(b, a); });
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), before);
  }
}

Value sorted(Heap& heap, const Value& of, const Arguments& with) {
  const bool reverse = with.flag(0), case_sensitive = with.flag(1);
  const Value attribute = with.value(2);
  if (is_text(attribute) && attribute.text->bytes.find(',') != std::string::npos) {
    unsupported("sorting by several attributes");
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(heap, of)) {
    heap.charge(2 * sizeof item);
    keyed.emplace_back(sort_key(heap, by_path(heap, item, attribute), case_sensitive), item);
  }
  sort_pairs(heap, keyed, reverse, /*as_lists=*/attribute.kind != Kind::none);
  Items items;
  for (const auto& [key, value] : keyed) items.push_back(value);
  return heap.list(std::move(items));
}

Value sorted_entries(Heap& heap, const Value& of, const Arguments& with) {
  if (of.kind != Kind::object) misfit(of, "object");
  const std::string by(with.has(1) ? as_text(with.value(1)).bytes : "key");
  if (by != "key" && by != "value") mistaken("dictsort sorts by key or value");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : of.members->entries()) {
    heap.charge(3 * sizeof key);
    keyed.emplace_back(sort_key(heap, by == "key" ? key : value, with.flag(0)),
                       heap.sequence(Kind::tuple, {key, value}));
  }
  sort_pairs(heap, keyed, with.flag(2));
  Items items;
  for (const auto& [key, value] : keyed) items.push_back(value);
  return heap.list(std::move(items));
}

Value unique(Heap& heap, const Value& of, const Arguments& with) {
  const Value seen = heap.dictionary();
  Items kept;
  for (const Value& item : items_of(heap, of)) {
    const Value key = sort_key(heap, by_path(heap, item, with.value(1)), with.flag(0));
    if (seen.members->find(heap, key)) continue;
    seen.members->set(heap, key, none());
    kept.push_back(item);
  }
  return heap.sequence(Kind::generator, std::move(kept), "unique");
}

Value extreme(Heap& heap, const Value& of, const Arguments& with, int wanted) {
  std::optional<Value> best, best_key;
  for (const Value& item : items_of(heap, of)) {
    const Value key = sort_key(heap, by_path(heap, item, with.value(1)), with.flag(0));
    if (best_key && compare(heap, key, *best_key) != wanted) continue;
    best = item;
    best_key = key;
  }
  return best ? *best : heap.undefined("the least or greatest of nothing");
}

Value total(Heap& heap, const Value& of, const Arguments& with) {
  Value sum = with.value(1, number(0));
  for (const Value& item : items_of(heap, of)) sum = binary(heap, "+", sum, by_path(heap, item, with.value(0)));
  return sum;
}

Value batches(Heap& heap, const Value& of, const Arguments& with) {
  const int64_t size = as_number(with.needed(0));
  Items all, some;
  for (const Value& item : items_of(heap, of)) {
    heap.work();
    if (std::ssize(some) == size) all.push_back(heap.list(std::exchange(some, {})));
    some.push_back(item);
  }
  if (!some.empty()) {
    for (auto i = std::ssize(some); with.value(1).kind != Kind::none && i < size; ++i) {
      heap.work();
      some.push_back(with.value(1));
      heap.charge(sizeof(Value));
    }
    all.push_back(heap.list(std::move(some)));
  }
  return heap.sequence(Kind::generator, std::move(all), "batch");
}

Value rounded_number(const Value& value, const Arguments& with) {
  const std::string how(with.has(1) ? as_text(with.value(1)).bytes : "common");
  if (how != "common" && how != "ceil" && how != "floor") mistaken("round is common, ceil or floor");
  return rounded(value, with.whole(0, 0), how);
}

Value to_whole(const Value& value, const Arguments& with) {
  if (with.whole(1, 10) != 10) unsupported("the filter \"int\" with another base");
  return whole_of(value, with.value(0, number(0)));
}

Value as_json(Heap& heap, const Value& value, const Arguments& with) {
  JsonStyle style{.ensure_ascii = with.flag(0), .sort_keys = with.flag(3)};
  if (const Value indent = with.value(1); is_whole(indent)) {
    const int64_t width = std::clamp<int64_t>(indent.number, 0, 1 << 20);
    heap.charge(static_cast<size_t>(width));
    style.indent = std::string(static_cast<size_t>(width), ' ');
  } else if (indent.kind != Kind::none) {
    style.indent = as_text(indent).bytes;
  }
  if (style.indent) style.between = ",";
  if (const Value separators = with.value(2); separators.kind != Kind::none) {
    const Items both = items_of(heap, separators);
    if (both.size() != 2) mistaken("separators are two texts");
    style.between = as_text(both[0]).bytes;
    style.after_key = as_text(both[1]).bytes;
  }
  TracedText text;
  write_json(heap, value, style, text);
  return heap.text(std::move(text));
}

/// Jinja's select and map take 0 and none for an empty list.
Items items_unless_false(Heap& heap, const Value& of) { return truth(of) ? items_of(heap, of) : Items(); }

/// Whether select or reject takes the item: by a test, or by its truth.
bool taken(Heap& heap, const Value& value, const Items& arguments, size_t first) {
  if (arguments.size() <= first) return truth(value);
  const Items more(arguments.begin() + static_cast<std::ptrdiff_t>(first) + 1, arguments.end());
  return test(heap, as_text(arguments[first]).bytes, value, more);
}

Value selected(Heap& heap, std::string_view name, const Value& of, const Items& arguments, const Named& named) {
  if (!named.empty()) unsupported(fmt::format("the argument \"{}\" of {}", named[0].first, name));
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  if (by_attribute && arguments.empty()) mistaken(fmt::format("the filter \"{}\" lacks an attribute", name));
  Items kept;
  for (const Value& item : items_unless_false(heap, of)) {
    heap.work();
    const Value value = by_attribute ? by_path(heap, item, arguments[0]) : item;
    if (taken(heap, value, arguments, by_attribute ? 1 : 0) == wanted) kept.push_back(item);
  }
  return heap.sequence(Kind::generator, std::move(kept), name);
}

Value mapped(Heap& heap, const Value& of, const Items& arguments, const Named& named) {
  Items made;
  const Items items = items_unless_false(heap, of);
  if (arguments.empty()) {
    const Arguments with(heap, "map", {}, named, {"attribute", "default"});
    for (const Value& item : items) {
      const Value value = by_path(heap, item, with.needed(0));
      made.push_back(value.kind == Kind::undefined ? with.value(1, value) : value);
    }
  } else {
    const std::string_view name = as_text(arguments[0]).bytes;
    const Items more(arguments.begin() + 1, arguments.end());
    for (const Value& item : items) made.push_back(filter(heap, name, item, more, named));
  }
  return heap.sequence(Kind::generator, std::move(made), "map");
}

Value reversed(Heap& heap, const Value& value) {
  Items items = items_of(heap, value);
  std::reverse(items.begin(), items.end());
  if (is_text(value)) return joined(heap, items);
  if (value.kind == Kind::generator) return heap.list(std::move(items));
  return heap.sequence(Kind::generator, std::move(items), "reverse");
}

Value at_end(Heap& heap, const Value& value, bool first) {
  if (value.kind == Kind::generator && !first) mistaken("the last item of what has no end");
  const Items items = items_of(heap, value);
  if (items.empty()) return heap.undefined(first ? "the first item" : "the last item");
  return first ? items.front() : items.back();
}

Value with_default(const Value& value, const Arguments& with) {
  const bool given = with.flag(1) ? truth(value) : value.kind != Kind::undefined;
  return given ? value : with.value(0, with.heap.view(""));
}

Value replaced_text(Heap& heap, const Value& value, const Arguments& with) {
  const Value text = printed(heap, value), what = printed(heap, with.needed(0)), by = printed(heap, with.needed(1));
  const int64_t most = with.value(2).kind == Kind::none ? -1 : as_number(with.value(2));
  return replaced(heap, text, *what.text, *by.text, most == 0 ? 0 : std::max<int64_t>(most, -1));
}

Value joined_items(Heap& heap, const Value& value, const Arguments& with) {
  Items items = items_of(heap, value);
  for (Value& item : items) item = by_path(heap, item, with.value(1));
  return joined(heap, items, *printed(heap, with.value(0, heap.view(""))).text);
}

Value indented_text(Heap& heap, const Value& value, const Arguments& with) {
  const Value width = with.value(0, number(4));
  as_text(value);
  if (is_text(width)) return indented(heap, value, std::string(width.text->bytes), with.flag(1), with.flag(2));
  const int64_t spaces = std::clamp<int64_t>(as_number(width), 0, 1 << 20);
  heap.charge(static_cast<size_t>(spaces));
  return indented(heap, value, std::string(static_cast<size_t>(spaces), ' '), with.flag(1), with.flag(2));
}

Value items_of_dictionary(Heap& heap, const Value& value) {
  if (value.kind != Kind::undefined && value.kind != Kind::object) misfit(value, "object");
  Items items = value.kind == Kind::object ? entries_of(heap, value, "items").sequence->items : Items();
  return heap.sequence(Kind::generator, std::move(items), "items");
}

Value magnitude(const Value& value) {
  if (value.kind == Kind::real) return real(std::abs(value.real));
  return as_number(value) < 0 ? negative(value) : number(value.number);
}

struct Filter {
  std::vector<std::string_view> names;  // of its arguments
  std::function<Value(Heap&, const Value&, const Arguments&)> apply;
};
using Filters = std::map<std::string_view, Filter>;

/// A filter without arguments.
Filter plain(std::function<Value(Heap&, const Value&)> apply) {
  return {{},
          [apply = std::move(apply)](Heap& heap, const Value& value, const Arguments&) { return apply(heap, value); }};
}

Filter in_case_of(std::string_view name) {
  return plain([name](Heap& heap, const Value& value) { return in_case(heap, printed(heap, value), name); });
}

Filters filters_of_texts() {
  const Filter escape =
      plain([](Heap& heap, const Value& value) { return value.safe ? value : escaped(heap, printed(heap, value)); });
  return {
      {"capitalize", in_case_of("capitalize")},
      {"center",
       {{"width"},
        [](Heap& heap, const Value& value, const Arguments& with) {
          return centred(heap, printed(heap, value), with.whole(0, 80));
        }}},
      {"e", escape},
      {"escape", escape},
      {"forceescape", plain([](Heap& heap, const Value& value) { return escaped(heap, printed(heap, value)); })},
      {"indent", {{"width", "first", "blank"}, indented_text}},
      {"lower", in_case_of("lower")},
      {"replace", {{"old", "new", "count"}, replaced_text}},
      {"safe", plain([](Heap& heap, const Value& value) {
         Value text = printed(heap, value);
         text.safe = true;
         return text;
       })},
      {"string", plain(printed)},
      {"title", plain([](Heap& heap, const Value& value) { return title_of_words(heap, printed(heap, value)); })},
      {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}, as_json}},
      {"trim",
       {{"chars"},
        [](Heap& heap, const Value& value, const Arguments& with) {
          return stripped(heap, printed(heap, value), with.value(0), true, true);
        }}},
      {"upper", in_case_of("upper")},
  };
}

Filters filters_of_sequences() {
  const Filter length = plain([](Heap& heap, const Value& value) {
    if (value.kind == Kind::loop) unsupported("the length of the loop");
    return number(length_of(heap, value));
  });
  const auto extreme_of = [](int direction) -> Filter {
    return {{"case_sensitive", "attribute"}, [direction](Heap& heap, const Value& value, const Arguments& with) {
              return extreme(heap, value, with, direction);
            }};
  };
  return {
      {"batch", {{"linecount", "fill_with"}, batches}},
      {"count", length},
      {"dictsort", {{"case_sensitive", "by", "reverse"}, sorted_entries}},
      {"first", plain([](Heap& heap, const Value& value) { return at_end(heap, value, true); })},
      {"items", plain(items_of_dictionary)},
      {"join", {{"d", "attribute"}, joined_items}},
      {"last", plain([](Heap& heap, const Value& value) { return at_end(heap, value, false); })},
      {"length", length},
      {"list", plain([](Heap& heap, const Value& value) { return heap.list(items_of(heap, value)); })},
      {"max", extreme_of(1)},
      {"min", extreme_of(-1)},
      {"reverse", plain(reversed)},
      {"sort", {{"reverse", "case_sensitive", "attribute"}, sorted}},
      {"sum", {{"attribute", "start"}, total}},
      {"unique", {{"case_sensitive", "attribute"}, unique}},
  };
}

Filters filters_of_numbers() {
  return {
      {"abs", plain([](Heap&, const Value& value) { return magnitude(value); })},
      {"float",
       {{"default"},
        [](Heap&, const Value& value, const Arguments& with) { return real_of(value, with.value(0, real(0))); }}},
      {"int",
       {{"default", "base"}, [](Heap&, const Value& value, const Arguments& with) { return to_whole(value, with); }}},
      {"round",
       {{"precision", "method"},
        [](Heap&, const Value& value, const Arguments& with) { return rounded_number(value, with); }}},
  };
}

/// All filters but those that are applied by name to several values: map, select and its kind.
const Filters& filters() {
  static const Filters kFilters = [] {
    const Filter otherwise{{"default_value", "boolean"},
                           [](Heap&, const Value& value, const Arguments& with) { return with_default(value, with); }};
    Filters all{{"d", otherwise}, {"default", otherwise}};
    all.merge(filters_of_texts());
    all.merge(filters_of_sequences());
    all.merge(filters_of_numbers());
    return all;
  }();
  return kFilters;
}

}  // namespace

bool is_filter(std::string_view name) {
  static constexpr std::array<std::string_view, 19> kOthers{
      "attr",      "filesizeformat", "format",    "groupby",    "map",    "pprint",    "random",
      "reject",    "rejectattr",     "select",    "selectattr", "slice",  "striptags", "truncate",
      "urlencode", "urlize",         "wordcount", "wordwrap",   "xmlattr"};
  return filters().contains(name) ||
         (!name.empty() && std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end());
}

Value filter(Heap& heap, std::string_view name, const Value& value, const Items& arguments, const Named& named) {
  heap.work();
  if (name == "map") return mapped(heap, value, arguments, named);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return selected(heap, name, value, arguments, named);
  }
  const auto found = filters().find(name);
  if (found == filters().end()) unsupported(fmt::format("the filter \"{}\"", name));
  return found->second.apply(heap, value, Arguments(heap, name, arguments, named, found->second.names));
}

}  // namespace titan::jinja
