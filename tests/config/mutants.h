// One-edit mutants of a config, for tests that a damaged config is either refused at once or means what it says.
// Deterministic: mutant k of a text is the same everywhere, so a failing one can be written out and looked at.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/random_sequence.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {

struct Mutant {
  std::string text;
  std::string edit;         ///< what was done, for a failure message
  std::string typed_key{};  ///< when a key was mistyped: what it became, with its section …
  std::string right_key{};  ///< … and what it was
};

namespace detail {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_0123456789";

/// One slip of the fingers in a word of at least two letters: drop, double, replace, insert or swap.
inline std::string slip(std::string word, PhiloxSequence& random) {
  auto size = static_cast<uint32_t>(word.size());
  uint32_t at = random.below(size);
  char letter = kLetters[random.below(kLetters.size())];
  switch (random.below(5)) {
    case 0:
      word.erase(at, 1);
      break;
    case 1:
      word.insert(at, 1, word[at]);
      break;
    case 2:
      word[at] = letter;
      break;
    case 3:
      word.insert(at, 1, letter);
      break;
    default:
      std::swap(word[at % (size - 1)], word[at % (size - 1) + 1]);
      break;
  }
  return word;
}

/// Another value of the kind that people write by mistake.
inline std::string other_value(const std::string& value, PhiloxSequence& random) {
  switch (random.below(10)) {
    case 0:
      return "0";
    case 1:
      return "-" + value;
    case 2:
      return value + "0";
    case 3:
      return value.starts_with('"') ? value.substr(1, value.size() - 2) : "\"" + value + "\"";
    case 4:
      return value == "true" ? "false" : "true";
    case 5:
      return "[" + value + "]";
    case 6:
      return "1e6";
    case 7:
      return "\"\"";
    case 8:
      return "";
    default:
      return slip(value + " ", random);
  }
}

struct OptionLine {
  size_t number;
  std::string section;
  std::string key;
  std::string value;
};

/// The lines `key = value` of a config written one option per line.
inline std::vector<OptionLine> option_lines(const std::vector<std::string>& lines) {
  std::vector<OptionLine> found;
  std::string section;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string line = trim(lines[i]);
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    size_t equals = line.find(" = ");
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    found.push_back({i, section, line.substr(0, equals), trim(value.substr(0, value.find("  #")))});
  }
  return found;
}

}  // namespace detail

/// A key mistyped (and nothing else); `right_key` and `typed_key` say which.
inline Mutant mistyped_key(const std::string& original, uint64_t k) {
  PhiloxSequence random(name_key("mistyped"), k);
  std::vector<std::string> lines = split(original, '\n');
  std::vector<detail::OptionLine> options = detail::option_lines(lines);
  const detail::OptionLine& option = options[random.below(static_cast<uint32_t>(options.size()))];
  std::string typed = option.key;
  while (typed == option.key || typed.empty()) typed = detail::slip(option.key, random);
  lines[option.number] = typed + " = " + option.value;
  std::string edit = fmt::format("line {}: {} became {}", option.number + 1, option.key, typed);
  return {join(lines, "\n"), edit, option.section + "." + typed, option.section + "." + option.key};
}

/// One edit of any kind: a key, a value, a character anywhere, a line gone or doubled.
inline Mutant mutant(const std::string& original, uint64_t k) {
  PhiloxSequence random(name_key("mutant"), k);
  uint32_t kind = random.below(8);
  if (kind < 2) return mistyped_key(original, k);
  if (kind == 2) {
    std::string text = original;
    uint32_t at = random.below(static_cast<uint32_t>(text.size()));
    constexpr std::string_view letters = "=[]\"'.#,-+0e \n\x01\xff";
    text[at] = letters[random.below(letters.size())];
    return {text, fmt::format("byte {} replaced", at)};
  }
  std::vector<std::string> lines = split(original, '\n');
  if (kind == 3) {
    size_t at = random.below(static_cast<uint32_t>(lines.size()));
    std::string edit = fmt::format("line {} removed: {}", at + 1, lines[at]);
    lines.erase(lines.begin() + static_cast<ptrdiff_t>(at));
    return {join(lines, "\n"), edit};
  }
  std::vector<detail::OptionLine> options = detail::option_lines(lines);
  const detail::OptionLine& option = options[random.below(static_cast<uint32_t>(options.size()))];
  if (kind == 4) {
    lines.insert(lines.begin() + static_cast<ptrdiff_t>(option.number), lines[option.number]);
    return {join(lines, "\n"), fmt::format("line {} doubled", option.number + 1)};
  }
  std::string value = detail::other_value(option.value, random);
  lines[option.number] = option.key + " = " + value;
  return {join(lines, "\n"),
          fmt::format("line {}: {} = {} became {}", option.number + 1, option.key, option.value, value)};
}

}  // namespace titan
