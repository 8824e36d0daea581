// The patterns of data files: fsspec's glob and the names by which `datasets` tells splits. Facts of datasets 5.2
// (data_files.py) and fsspec 2026 (utils.py); tests compare with both.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <stdexcept>

#include "hub_folder.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

std::u32string characters_of(std::string_view text) {
  std::string storage;
  std::u32string characters;
  for (std::string_view rest = valid_utf8(text, storage); !rest.empty();) {
    characters.push_back(first_code_point(rest));
    rest.remove_prefix(utf8_length(static_cast<unsigned char>(rest[0])));
  }
  return characters;
}

/// Whether `c` is in the set that begins behind the "[" at `at`, which is moved behind the "]". Nothing without "]".
std::optional<bool> is_in_set(const std::u32string& pattern, size_t& at, char32_t c) {
  const bool negated = at < pattern.size() && pattern[at] == U'!';
  const size_t begin = at + (negated ? 1 : 0);
  // From the second character on: a "]" at the beginning is a member, as in fnmatch.
  const size_t end = pattern.find(U']', begin + 1);
  if (begin >= pattern.size() || end == pattern.npos) return std::nullopt;
  bool found = false;
  for (size_t i = begin; i < end;) {
    const bool is_range = i + 2 < end && pattern[i + 1] == U'-';
    found = found || (is_range ? pattern[i] <= c && c <= pattern[i + 2] : pattern[i] == c);
    i += is_range ? 3 : 1;
  }
  at = end + 1;
  return found != negated;
}

/// Matches one part of a path with *, ? and [set]. After a mismatch only the last star takes another character, so the
/// time is at most the product of both lengths.
bool matches_part(const std::u32string& pattern, const std::u32string& name) {
  size_t at = 0, star = pattern.npos, resume = 0, i = 0;
  while (i < name.size() || at < pattern.size()) {
    if (at < pattern.size() && pattern[at] == U'*') {
      star = ++at;
      resume = i;
      continue;
    }
    bool fits = at < pattern.size() && i < name.size();
    size_t next = at + 1;
    if (fits && pattern[at] == U'[') {
      const std::optional<bool> in_set = is_in_set(pattern, next, name[i]);
      fits = in_set.value_or(name[i] == U'[');
    } else {
      fits = fits && (pattern[at] == U'?' || pattern[at] == name[i]);
    }
    if (fits) {
      at = next;
      ++i;
    } else if (star != pattern.npos && resume < name.size()) {
      at = star;
      i = ++resume;
    } else {
      return false;
    }
  }
  return true;
}

/// Folders whose names begin with two underscores (__pycache__) are found only if the pattern names them.
int64_t special_folders(std::string_view path) {
  std::vector<std::string> parts = split(path, '/');
  if (!parts.empty()) parts.pop_back();
  return std::count_if(parts.begin(), parts.end(), [](const std::string& part) { return part.starts_with("__"); });
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_ignored(const std::string& name) {
  constexpr std::array<std::string_view, 6> kIgnored{"README.md",          "config.json",    "dataset_info.json",
                                                     "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"};
  return std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end();
}

constexpr std::string_view kDigits5 = "[0-9][0-9][0-9][0-9][0-9]";

std::string shard_pattern(std::string_view split) {
  return fmt::format("data/{}-{}-of-{}*.*", split, kDigits5, kDigits5);
}

/// The name before "-00000-of-00001" (the last of these).
std::string split_of_shard(const std::string& name) {
  for (size_t at = name.rfind("-of-"); at != name.npos && at >= 6; at = name.rfind("-of-", at - 1)) {
    const auto are_digits = [&](size_t begin, size_t count) {
      return begin + count <= name.size() && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                                         name.begin() + static_cast<std::ptrdiff_t>(begin + count),
                                                         [](char c) { return c >= '0' && c <= '9'; });
    };
    if (name[at - 6] == '-' && are_digits(at - 5, 5) && are_digits(at + 4, 4)) return name.substr(0, at - 6);
  }
  return {};
}

/// Words, joined by dots.
bool is_split_name(std::string_view name) {
  const auto is_word = [](char c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return is_letter || c == '_' || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
  };
  if (name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != name.npos) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) { return c == '.' || is_word(c); });
}

struct SplitWords {
  std::string_view split;
  std::vector<std::string_view> words;
};

const std::array<SplitWords, 3>& split_words() {
  static const std::array<SplitWords, 3> kWords{{{"train", {"train", "training"}},
                                                 {"validation", {"validation", "valid", "dev", "val"}},
                                                 {"test", {"test", "testing", "eval", "evaluation"}}}};
  return kWords;
}

/// The patterns that find the words in names of folders or of files.
std::vector<std::string> word_patterns(const SplitWords& split, bool in_folders) {
  constexpr std::array kFolders{"**/{}/**", "**/{}[-._ 0-9]*/**", "**/*[-._ 0-9]{}/**", "**/*[-._ 0-9]{}[-._ 0-9]*/**"};
  constexpr std::array kFiles{"**/{}[-._ 0-9]*", "**/*[-._ 0-9]{}[-._ 0-9]*"};
  const std::span<const char* const> forms = in_folders ? std::span<const char* const>(kFolders) : kFiles;
  std::vector<std::string> patterns;
  for (const std::string_view word : split.words) {
    for (const char* form : forms) patterns.push_back(fmt::format(fmt::runtime(form), word));
  }
  return patterns;
}

}  // namespace

bool matches_hub_pattern(std::string_view pattern, std::string_view path) {
  const std::vector<std::string> parts = split(path, '/'), patterns = split(pattern, '/');
  // All numbers of parts that the pattern so far can match: trying one after the other is exponential in the "**".
  std::vector<bool> reached(parts.size() + 1);
  reached[0] = true;
  for (size_t p = 0; p < patterns.size(); ++p) {
    const bool is_last = p + 1 == patterns.size();
    std::vector<bool> next(parts.size() + 1);
    const std::u32string wanted = characters_of(patterns[p]);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!reached[i]) continue;
      if (patterns[p] != "**") {
        next[i + 1] = next[i + 1] || matches_part(wanted, characters_of(parts[i]));
      } else if (is_last) {
        next[parts.size()] = true;
      } else {
        std::fill(next.begin() + static_cast<std::ptrdiff_t>(i), next.end() - 1, true);
      }
    }
    reached = std::move(next);
  }
  return reached[parts.size()];
}

std::vector<std::string> find_hub_files(const std::string& base, const std::string& pattern,
                                        const std::vector<std::string>& sorted) {
  const std::string whole = base + pattern;
  std::vector<std::string> found;
  for (const std::string& path : sorted) {
    const std::string name = name_of(path);
    if (is_ignored(name) && name != name_of(whole)) continue;
    if (special_folders(path) == special_folders(whole) && matches_hub_pattern(whole, path)) found.push_back(path);
  }
  return found;
}

HubPatterns default_hub_patterns(const std::string& base, const std::vector<std::string>& sorted) {
  const auto finds = [&](const std::string& pattern) { return !find_hub_files(base, pattern, sorted).empty(); };
  std::set<std::string> shards;
  for (const std::string& path : find_hub_files(base, shard_pattern("*"), sorted)) {
    const std::string name = split_of_shard(name_of(path));
    if (!is_split_name(name)) throw std::invalid_argument(fmt::format("the split of {} has no name", path));
    shards.insert(name);
  }
  HubPatterns patterns;
  for (const std::string& name : shards) patterns.push_back({name, {shard_pattern(name)}});
  if (!patterns.empty()) return patterns;
  for (const char* other : {"**/*.eval", "**/task.toml", "**/instruction.md"}) {
    if (finds(other)) throw std::invalid_argument(fmt::format("{} is read by a reader of its own", other));
  }
  for (const bool in_folders : {true, false}) {
    for (const SplitWords& split : split_words()) {
      std::vector<std::string> words = word_patterns(split, in_folders);
      if (std::any_of(words.begin(), words.end(), finds)) patterns.push_back({std::string(split.split), words});
    }
    if (!patterns.empty()) return patterns;
  }
  return {{"train", {"**"}}};
}

}  // namespace titan
