// The methods of Python's str.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "chat_jinja_text.h"
#include "titan/text/utf8.h"

namespace titan::jinja {

namespace {

bool begins_or_ends(std::string_view text, const Value& with, bool begins) {
  if (with.kind == Kind::tuple) {
    const Items& items = with.sequence->items;
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& each) { return begins_or_ends(text, each, begins); });
  }
  const std::string_view part = as_text(with).bytes;
  return begins ? text.starts_with(part) : text.ends_with(part);
}

/// str.find, rfind, index, rindex and count of a part.
Value found_in(Heap& heap, std::string_view name, const Value& text, const Text& part) {
  const std::string_view bytes = text.text->bytes;
  heap.work(bytes.size() / 16);
  if (name == "count") {
    if (part.bytes.empty()) return number(length_of(heap, text) + 1);
    return number(std::ssize(split(heap, text, &part)) - 1);
  }
  const size_t at = name[0] == 'r' ? bytes.rfind(part.bytes) : bytes.find(part.bytes);
  if (at != bytes.npos) return number(length_of(heap, heap.view(bytes.substr(0, at))));
  if (name.ends_with("index")) mistaken("a text is not part of another");
  return number(-1);
}

/// str.isdigit and its kin, for ASCII.
Value is_all(std::string_view name, std::string_view text) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    if (name == "isascii") return boolean(false);
    unsupported(fmt::format("{} of characters other than ASCII's", name));
  }
  const auto all = [&](const auto& is) { return boolean(!text.empty() && std::all_of(text.begin(), text.end(), is)); };
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_letter = [&](char c) { return is_lower(c) || is_upper(c); };
  if (name == "isascii") return boolean(true);
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric") return all(is_digit);
  if (name == "isalpha") return all(is_letter);
  if (name == "isalnum") return all([&](char c) { return is_letter(c) || is_digit(c); });
  if (name == "isspace") return boolean(!text.empty() && strip_characters(text).empty());
  if (name == "islower" || name == "isupper") {
    const bool lower = name == "islower";
    const bool any = std::any_of(text.begin(), text.end(), is_letter);
    return boolean(any &&
                   std::none_of(text.begin(), text.end(), [&](char c) { return lower ? is_upper(c) : is_lower(c); }));
  }
  unsupported(fmt::format("the method \"{}\"", name));
}

/// rsplit at a part: the last `most` cuts.
Items split_from_right(Heap& heap, const Value& text, const Text& at, int64_t most) {
  Items all = split(heap, text, &at);
  if (most < 0 || std::ssize(all) - 1 <= most) return all;
  const auto kept = static_cast<size_t>(std::ssize(all) - most);
  const Value head = joined(heap, Items(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept)), at);
  Items parts{head};
  parts.insert(parts.end(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
  return parts;
}

/// str.partition: before the part, the part, after it.
Value partitioned(Heap& heap, const Value& text, const Text& part, bool from_right) {
  if (part.bytes.empty()) mistaken("a text is parted at an empty one");
  const std::string_view bytes = text.text->bytes;
  heap.work(bytes.size() / 16);
  const size_t at = from_right ? bytes.rfind(part.bytes) : bytes.find(part.bytes);
  const Value empty = heap.view("");
  if (at == bytes.npos) {
    return heap.sequence(Kind::tuple, from_right ? Items{empty, empty, text} : Items{text, empty, empty});
  }
  const size_t end = at + part.bytes.size();
  return heap.sequence(Kind::tuple,
                       {heap.part(text, 0, at), heap.part(text, at, end), heap.part(text, end, bytes.size())});
}

Value justified(Heap& heap, std::string_view name, const Value& text, const Items& arguments) {
  const int64_t width = as_number(arguments.at(0)), length = length_of(heap, text);
  const std::string_view fill = arguments.size() > 1 ? as_text(arguments[1]).bytes : " ";
  if (name == "center") return centred(heap, text, width, fill);
  const int64_t missing = std::max<int64_t>(0, width <= length ? 0 : width - length);
  return padded(heap, text, name == "rjust" ? missing : 0, name == "ljust" ? missing : 0, fill);
}

std::optional<Value> method_of_one(Heap& heap, std::string_view name, const Value& text, const Value& argument) {
  if (name == "startswith" || name == "endswith") {
    return boolean(begins_or_ends(text.text->bytes, argument, name == "startswith"));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return found_in(heap, name, text, as_text(argument));
  }
  if (name == "join") {
    const Items items = items_of(heap, argument);
    for (const Value& item : items) as_text(item);
    return joined(heap, items, *text.text);
  }
  if (name == "partition" || name == "rpartition") return partitioned(heap, text, as_text(argument), name[0] == 'r');
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string_view bytes = text.text->bytes, part = as_text(argument).bytes;
    if (name == "removeprefix") return heap.part(text, bytes.starts_with(part) ? part.size() : 0, bytes.size());
    return heap.part(text, 0, bytes.ends_with(part) ? bytes.size() - part.size() : bytes.size());
  }
  return std::nullopt;
}

}  // namespace

Value text_method(Heap& heap, std::string_view name, const Value& text, const Items& arguments, const Named& named) {
  const auto argument = [&](size_t i, std::string_view key) {
    for (const auto& [given, value] : named) {
      if (given == key) return value;
    }
    return i < arguments.size() ? arguments[i] : none();
  };
  const bool splits = name == "split" || name == "rsplit";
  for (const auto& [key, value] : named) {
    const bool known = (splits && (key == "sep" || key == "maxsplit")) || (name == "splitlines" && key == "keepends");
    if (!known) unsupported(fmt::format("the argument \"{}\" of {}", key, name));
  }
  const size_t count = arguments.size();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    if (count > 1) mistaken(fmt::format("{} takes one argument", name));
    return stripped(heap, text, argument(0, ""), name != "rstrip", name != "lstrip");
  }
  if (count == 0 && (name == "upper" || name == "lower" || name == "title" || name == "capitalize")) {
    return in_case(heap, text, name);
  }
  if (text.safe && name != "startswith" && name != "endswith") {
    unsupported(fmt::format("the method \"{}\" of a text marked as safe", name));
  }
  if (splits && count <= 2) {
    const Value at = argument(0, "sep"), most = argument(1, "maxsplit");
    const int64_t cuts = most.kind == Kind::none ? -1 : as_number(most);
    if (name == "split" || cuts < 0) {
      return heap.list(split(heap, text, at.kind == Kind::none ? nullptr : &as_text(at), std::max<int64_t>(cuts, -1)));
    }
    if (at.kind == Kind::none) unsupported("rsplit at white space");
    return heap.list(split_from_right(heap, text, as_text(at), cuts));
  }
  if (name == "splitlines" && count <= 1) return heap.list(split_lines(heap, text, truth(argument(0, "keepends"))));
  if (name == "replace" && (count == 2 || count == 3)) {
    const int64_t most = count == 3 ? std::max<int64_t>(-1, as_number(arguments[2])) : -1;
    return replaced(heap, text, as_text(arguments[0]), as_text(arguments[1]), most);
  }
  if (count == 1) {
    if (std::optional<Value> made = method_of_one(heap, name, text, arguments[0])) return *made;
  }
  if ((name == "center" || name == "ljust" || name == "rjust") && (count == 1 || count == 2)) {
    return justified(heap, name, text, arguments);
  }
  if (count == 0 && name.starts_with("is")) return is_all(name, text.text->bytes);
  unsupported(fmt::format("the method \"{}\" with {} arguments", name, count));
}

}  // namespace titan::jinja
