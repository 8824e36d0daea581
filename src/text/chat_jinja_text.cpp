#include "chat_jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "titan/text/utf8.h"

namespace titan::jinja {
namespace {

/// Calls `each` with every character and its origin.
template <typename Each>
void for_each_character(Heap& heap, const Text& text, Each&& each) {
  heap.work(text.bytes.size() / 16);
  size_t at = 0;
  for (const TracedText::Span& span : text.spans) {
    while (at < span.end) {
      const size_t size = utf8_length(static_cast<unsigned char>(text.bytes[at]));
      each(text.bytes.substr(at, size), span.from);
      at += size;
    }
  }
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string hexadecimal(char32_t c) {
  const auto code = static_cast<uint32_t>(c);
  return code < 0x100     ? fmt::format("\\x{:02x}", code)
         : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                          : fmt::format("\\U{:08x}", code);
}

}  // namespace

void quote(Heap& heap, const Text& text, TracedText& to) {
  const bool single = text.bytes.find('\'') != text.bytes.npos, twice = text.bytes.find('"') != text.bytes.npos;
  const std::string_view mark = single && !twice ? "\"" : "'";
  heap.put(to, mark);
  for_each_character(heap, text, [&](std::string_view bytes, size_t from) {
    const char32_t c = first_code_point(bytes);
    if (bytes == mark || bytes == "\\") {
      heap.put(to, "\\", from);
      heap.put(to, bytes, from);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      heap.put(to, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", from);
    } else if (is_printable(c)) {
      heap.put(to, bytes, from);
    } else {
      heap.put(to, hexadecimal(c), from);
    }
  });
  heap.put(to, mark);
}

// JSON.

namespace {

void write_json_text(Heap& heap, const Text& text, bool ensure_ascii, TracedText& to) {
  heap.put(to, "\"");
  for_each_character(heap, text, [&](std::string_view bytes, size_t from) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const char32_t c = first_code_point(bytes);
    if (const size_t at = kEscaped.find(bytes); at != kEscaped.npos) {
      heap.put(to, std::string{'\\', kLetters[at]}, from);
    } else if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
      heap.put(to, fmt::format("\\u{:04x}", static_cast<uint32_t>(c)), from);
    } else if (ensure_ascii && c >= 0x10000) {
      const auto rest = static_cast<uint32_t>(c) - 0x10000;
      heap.put(to, fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)), from);
    } else {
      heap.put(to, bytes, from);
    }
  });
  heap.put(to, "\"");
}

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return shown_real(value);
}

void write_json_key(Heap& heap, const Value& key, bool ensure_ascii, TracedText& to) {
  if (is_text(key)) return write_json_text(heap, *key.text, ensure_ascii, to);
  const bool is_simple = is_number(key) || key.kind == Kind::none;
  if (!is_simple) mistaken(fmt::format("a {} as a key of JSON", type_name(key)));
  heap.put(to, "\"");
  write_json(heap, key, {}, to);
  heap.put(to, "\"");
}

/// Writes items between brackets, on lines of their own with an indent.
template <typename Items, typename Each>
void write_json_items(Heap& heap, const Items& items, std::string_view brackets, const JsonStyle& style, int depth,
                      TracedText& to, const Each& each) {
  heap.put(to, brackets.substr(0, 1));
  const auto line = [&](int indents) {
    if (!style.indent) return;
    heap.put(to, "\n");
    for (int i = 0; i < indents; ++i) heap.put(to, *style.indent);
  };
  bool first = true;
  for (const auto& item : items) {
    if (!std::exchange(first, false)) heap.put(to, style.between);
    line(depth + 1);
    each(item);
  }
  if (!items.empty()) line(depth);
  heap.put(to, brackets.substr(1));
}

}  // namespace

void write_json(Heap& heap, const Value& value, const JsonStyle& style, TracedText& to, int depth) {
  heap.work();
  if (depth > kDeepestValue) unsupported("a value nested this deep");
  switch (value.kind) {
    case Kind::none:
      return heap.put(to, "null");
    case Kind::boolean:
      return heap.put(to, value.number != 0 ? "true" : "false");
    case Kind::number:
      return heap.put(to, std::to_string(value.number));
    case Kind::real:
      return heap.put(to, json_real(value.real));
    case Kind::text:
      return write_json_text(heap, *value.text, style.ensure_ascii, to);
    case Kind::list:
    case Kind::tuple:
      return write_json_items(heap, value.sequence->items, "[]", style, depth, to,
                              [&](const Value& item) { write_json(heap, item, style, to, depth + 1); });
    case Kind::object: {
      std::vector<std::pair<Value, Value>> entries = value.members->entries();
      heap.charge(entries.size() * sizeof entries[0]);
      if (style.sort_keys) {
        std::stable_sort(entries.begin(), entries.end(),
                         [&](const auto& a, const auto& b) { return compare(heap, a.first, b.first) == -1; });
      }
      return write_json_items(heap, entries, "{}", style, depth, to, [&](const auto& entry) {
        write_json_key(heap, entry.first, style.ensure_ascii, to);
        heap.put(to, style.after_key);
        write_json(heap, entry.second, style, to, depth + 1);
      });
    }
    default:
      mistaken(fmt::format("a {} cannot be written as JSON", type_name(value)));
  }
}

// Letter case.

namespace {

/// Characters whose other case is more than one character, or depends on those around them. Lower case has two: İ, and
/// the sigma, which has another form at the end of a word.
bool has_special_case(char32_t c, bool upper) {
  if (!upper) return c == 0x130 || c == 0x3A3;
  return c == 0xDF || c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3A3 || c == 0x3B0 || c == 0x587 ||
         (c >= 0x1C4 && c <= 0x1CC) || (c >= 0x1F1 && c <= 0x1F3) || (c >= 0x10D0 && c <= 0x10FF) ||
         (c >= 0x1E96 && c <= 0x1E9E) || (c >= 0x1F50 && c <= 0x1FFF) || (c >= 0xFB00 && c <= 0xFB17) || c == 0x345;
}

bool is_cased(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

void put_in_case(Heap& heap, TracedText& to, std::string_view bytes, size_t from, bool upper, std::string_view name) {
  const char32_t c = first_code_point(bytes);
  if (has_special_case(c, upper)) unsupported(fmt::format("{} of \"{}\"", name, bytes));
  const auto code = static_cast<utf8proc_int32_t>(c);
  std::string other;
  append_utf8(static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code)), other);
  heap.put(to, other, from);
}

}  // namespace

Value in_case(Heap& heap, const Value& text, std::string_view name) {
  bool inside = false;
  TracedText to;
  for_each_character(heap, as_text(text), [&](std::string_view bytes, size_t from) {
    put_in_case(heap, to, bytes, from, name == "upper" || (name != "lower" && !inside), name);
    inside = name == "capitalize" || is_cased(first_code_point(bytes));
  });
  Value made = heap.text(std::move(to));
  made.safe = text.safe;
  return made;
}

Value title_of_words(Heap& heap, const Value& text) {
  bool begins = true;
  TracedText to;
  for_each_character(heap, as_text(text), [&](std::string_view bytes, size_t from) {
    put_in_case(heap, to, bytes, from, begins, "title");
    begins = std::string_view("-({[<").find(bytes) != std::string_view::npos || strip_characters(bytes).empty();
  });
  return heap.text(std::move(to));
}

// Joining and cutting.

Value joined(Heap& heap, const Items& items, const Text& between) {
  TracedText all;
  for (size_t i = 0; i < items.size(); ++i) {
    heap.work();
    if (i > 0) heap.put(all, between);
    print(heap, items[i], all);
  }
  return heap.text(std::move(all));
}

Value joined(Heap& heap, const Items& items) { return joined(heap, items, Text()); }

Items split(Heap& heap, const Value& text, const Text* at, int64_t most) {
  const std::string_view bytes = as_text(text).bytes;
  heap.work(bytes.size() / 16);
  Items parts;
  const auto push = [&](size_t begin, size_t end) {
    heap.charge(sizeof(Value));
    heap.work();
    parts.push_back(heap.part(text, begin, end));
  };
  size_t begin = 0;
  if (at) {
    if (at->bytes.empty()) mistaken("split at an empty text");
    for (size_t end = bytes.find(at->bytes); end != bytes.npos && most != 0;
         end = bytes.find(at->bytes, begin), --most) {
      push(begin, end);
      begin = end + at->bytes.size();
    }
    push(begin, bytes.size());
    return parts;
  }
  const auto skip = [&](bool blanks) {
    while (begin < bytes.size()) {
      const size_t size = utf8_length(static_cast<unsigned char>(bytes[begin]));
      if (strip_characters(bytes.substr(begin, size)).empty() != blanks) return;
      begin += size;
    }
  };
  for (skip(true); begin < bytes.size(); skip(true)) {
    const size_t from = begin;
    if (most-- == 0) {
      push(from, from + strip_characters(bytes.substr(from), nullptr, false, true).size());
      break;
    }
    skip(false);
    push(from, begin);
  }
  return parts;
}

Items split_lines(Heap& heap, const Value& text, bool keep_ends) {
  static constexpr std::array<std::string_view, 12> kEnds{
      "\r\n", "\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
  const std::string_view bytes = as_text(text).bytes;
  heap.work(bytes.size() / 4);
  Items lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const auto end = std::find_if(kEnds.begin(), kEnds.end(), [&](std::string_view each) {
      return !each.empty() && bytes.substr(at).starts_with(each);
    });
    if (end == kEnds.end()) {
      ++at;
      continue;
    }
    heap.charge(sizeof(Value));
    lines.push_back(heap.part(text, begin, keep_ends ? at + end->size() : at));
    at += end->size();
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(heap.part(text, begin, bytes.size()));
  return lines;
}

Value replaced(Heap& heap, const Value& text, const Text& what, const Text& by, int64_t most) {
  if (!what.bytes.empty()) return joined(heap, split(heap, text, &what, most), by);
  TracedText to;
  const auto insert = [&] {
    if (most != 0) heap.put(to, by);
    if (most > 0) --most;
  };
  for_each_character(heap, as_text(text), [&](std::string_view bytes, size_t from) {
    insert();
    heap.put(to, bytes, from);
  });
  insert();
  return heap.text(std::move(to));
}

Value stripped(Heap& heap, const Value& text, const Value& set, bool left, bool right) {
  const std::string_view bytes = as_text(text).bytes;
  const std::string characters(set.kind == Kind::none ? std::string_view() : as_text(set).bytes);
  heap.work(bytes.size() / 64 * (1 + characters.size() / 64));
  const std::string_view kept = strip_characters(bytes, set.kind == Kind::none ? nullptr : &characters, left, right);
  const auto begin = static_cast<size_t>(kept.data() - bytes.data());
  return heap.part(text, begin, begin + kept.size());
}

Value padded(Heap& heap, const Value& text, int64_t before, int64_t after, std::string_view fill) {
  if (fill.empty() || utf8_length(static_cast<unsigned char>(fill[0])) != fill.size()) {
    mistaken("a text is filled with one character");
  }
  TracedText to;
  const auto pad = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) heap.work(), heap.put(to, fill);
  };
  pad(before);
  heap.put(to, as_text(text));
  pad(after);
  return heap.text(std::move(to));
}

Value centred(Heap& heap, const Value& text, int64_t width, std::string_view fill) {
  const int64_t length = length_of(heap, text), missing = width <= length ? 0 : width - length;
  const int64_t left = missing / 2 + (missing & width & 1);  // where Python puts the odd one
  return padded(heap, text, left, missing - left, fill);
}

Value indented(Heap& heap, const Value& text, const std::string& indent, bool first, bool blank) {
  TracedText with_end;  // as Jinja does, so that a text without lines is one empty line
  heap.put(with_end, as_text(text));
  heap.put(with_end, "\n");
  const Items lines = split_lines(heap, heap.text(std::move(with_end)));
  TracedText to;
  if (first) heap.put(to, indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    heap.work();
    if (i > 0) heap.put(to, "\n");
    if (i > 0 && (blank || !lines[i].text->bytes.empty())) heap.put(to, indent);
    heap.put(to, *lines[i].text);
  }
  return heap.text(std::move(to));
}

Value repeated(Heap& heap, const Value& text, int64_t times) {
  TracedText to;
  for (int64_t i = 0; i < times && !as_text(text).bytes.empty(); ++i) {
    heap.work();
    heap.put(to, *text.text);
  }
  Value made = heap.text(std::move(to));
  made.safe = text.safe;
  return made;
}

Value escaped(Heap& heap, const Value& text) {
  TracedText to;
  for_each_character(heap, as_text(text), [&](std::string_view bytes, size_t from) {
    constexpr std::string_view kCharacters = "&<>'\"";
    static constexpr std::array<const char*, 5> kNames{"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t at = kCharacters.find(bytes);
    heap.put(to, at == kCharacters.npos ? bytes : kNames[at], from);
  });
  Value made = heap.text(std::move(to));
  made.safe = true;
  return made;
}

}  // namespace titan::jinja
