#include "json_array.h"

#include <algorithm>

namespace titan {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

int64_t lines_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

/// What next_character returns at the end of the file, and no character is: a file may hold NUL bytes.
constexpr int kFileEnd = -1;

/// Skips white space and returns the next character, which stays, or kFileEnd.
int next_character(BufferedFile& file, int64_t& lines) {
  while (true) {
    const std::string_view bytes = file.peek(1);
    if (bytes.empty()) return kFileEnd;
    const size_t at = std::min(bytes.find_first_not_of(kBlank), bytes.size());
    const bool found = at < bytes.size();
    const int next = found ? static_cast<unsigned char>(bytes[at]) : kFileEnd;
    lines += lines_in(bytes.substr(0, at));
    file.consume(at);
    if (found) return next;
  }
}

/// Skips what is left of the file.
void skip_rest(BufferedFile& file) {
  while (!file.peek(1).empty()) file.consume(file.peek(1).size());
}

}  // namespace

std::optional<size_t> JsonValueEnd::find(std::string_view more) {
  for (size_t at = 0; at < more.size(); ++at) {
    const char c = more[at];
    if (is_string_) {
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        is_string_ = false;
        if (depth_ == 0) return at + 1;
      }
    } else if (c == '"') {
      is_string_ = began_ = true;
    } else if (c == '[' || c == '{') {
      ++depth_;
      began_ = true;
    } else if (depth_ == 0 && (c == ',' || c == ']' || c == '}' || (began_ && kBlank.find(c) != kBlank.npos))) {
      return at;  // numbers and words have no end of their own
    } else if (c == ']' || c == '}') {
      if (--depth_ == 0) return at + 1;
    } else {
      began_ = true;
    }
  }
  return std::nullopt;
}

bool begins_with_array(BufferedFile& file) {
  constexpr size_t kMostBlank = size_t{1} << 16;  // a file of blanks is not read into memory for this
  size_t wanted = 1;
  while (true) {
    const std::string_view bytes = file.peek(wanted);
    const size_t at = bytes.find_first_not_of(kBlank);
    if (at != bytes.npos) return bytes[at] == '[';
    if (bytes.size() < wanted || wanted > kMostBlank) return false;
    wanted = bytes.size() + 1;
  }
}

int64_t enter_array(BufferedFile& file) {
  int64_t lines = 0;
  next_character(file, lines);
  file.consume(1);
  return lines;
}

ArrayElement read_element(BufferedFile& file, size_t longest, int64_t& lines_after) {
  ArrayElement element;
  const auto fail = [&](const char* what) {
    skip_rest(file);
    element.state = ArrayElement::State::element;
    element.problem = what;
    return element;
  };
  int next = next_character(file, element.lines);
  element.offset = file.offset();
  if (next == kFileEnd) return fail("the array of records that begins this file has no end: the file is cut off");
  if (next == ']') {
    file.consume(1);
    if (next_character(file, element.lines) == kFileEnd) return element;
    return fail("there is text after the end of the array of records");
  }
  JsonValueEnd value;
  element.state = ArrayElement::State::element;
  while (true) {
    const std::string_view bytes = file.peek(1);
    if (bytes.empty()) return fail("the file ends inside this record: it is cut off");
    const std::optional<size_t> end = value.find(bytes);
    const std::string_view part = bytes.substr(0, end.value_or(bytes.size()));
    lines_after += lines_in(part);
    if (element.bytes.size() + part.size() > longest) element.state = ArrayElement::State::too_long;
    if (element.state == ArrayElement::State::too_long) {
      element.bytes.clear();
    } else {
      element.bytes += part;
    }
    file.consume(part.size());
    if (end) break;
  }
  next = next_character(file, lines_after);
  if (next == ',') {
    file.consume(1);
    if (next_character(file, lines_after) == ']') return fail("no record follows the comma after this one");
  } else if (next != ']') {
    return fail(next == kFileEnd ? "the file ends after this record, inside the array of records: it is cut off"
                                 : "neither a comma nor the end of the array follows this record");
  }
  return element;
}

}  // namespace titan
