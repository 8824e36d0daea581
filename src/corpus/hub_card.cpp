// Reads "configs" from the YAML at the beginning of a data set's README.md. Only the forms of YAML in which cards are
// written: blocks, scalars on one line, lists in brackets. Whatever else is there is refused with its line.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hub_folder.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The reader calls itself for each level. A card that nests deeper is refused like one that it does not understand.
constexpr int kDeepestCard = 20;

struct CardLine {
  int64_t number;  // in README.md
  size_t indent;
  std::string text;
};

/// Names a line that cannot be followed.
struct UnclearCard {
  std::string line;
};

bool is_list_item(std::string_view text) { return text == "-" || text.starts_with("- "); }
bool is_comment(std::string_view text) { return text.empty() || text[0] == '#'; }

/// Reads a quoted scalar at `at`, which is moved behind it.
std::string read_quoted(std::string_view text, size_t& at) {
  const char quote = text[at++];
  std::string value;
  for (; at < text.size(); ++at) {
    if (text[at] == quote && quote == '\'' && text.substr(at + 1).starts_with('\'')) {
      ++at;
    } else if (text[at] == quote) {
      return ++at, value;
    } else if (text[at] == '\\' && quote == '"') {
      if (at + 1 == text.size() || std::string_view("\"\\/").find(text[at + 1]) == std::string_view::npos) break;
      ++at;
    }
    value += text[at];
  }
  throw UnclearCard{std::string(text)};
}

/// A plain scalar with its type, as PyYAML resolves it; numbers stay text.
Json plain_value(const std::string& text) {
  const std::string lower = to_lower(text);
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const bool is_one_case =
      std::none_of(text.begin(), text.end(), is_lower) || std::equal(text.begin() + 1, text.end(), lower.begin() + 1);
  const auto is_any = [&](std::initializer_list<const char*> names) {
    return is_one_case && std::any_of(names.begin(), names.end(), [&](const char* name) { return lower == name; });
  };
  if (is_any({"", "~", "null"})) return nullptr;
  if (is_any({"true", "yes", "on"})) return true;
  if (is_any({"false", "no", "off"})) return false;
  return text;
}

/// The value at the beginning of `text`: a list in brackets or a scalar.
class FlowReader {
 public:
  explicit FlowReader(std::string_view text) : text_(text) {}

  Json read() {
    Json value = text_.starts_with('[') ? list() : scalar(/*in_list=*/false);
    const std::string rest = trim(text_.substr(at_));
    if (!is_comment(rest)) throw UnclearCard{std::string(text_)};
    return value;
  }

 private:
  Json list() {
    Json values = Json::array();
    ++at_;
    while (true) {
      skip_blanks();
      if (at_ == text_.size()) throw UnclearCard{std::string(text_)};
      if (text_[at_] == ']') return ++at_, values;
      values.push_back(scalar(/*in_list=*/true));
      skip_blanks();
      if (at_ < text_.size() && text_[at_] == ',')
        ++at_;
      else if (at_ == text_.size() || text_[at_] != ']')
        throw UnclearCard{std::string(text_)};
    }
  }

  Json scalar(bool in_list) {
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) return read_quoted(text_, at_);
    const size_t end =
        std::min({text_.size(), text_.find(" #", at_), in_list ? text_.find_first_of(",]", at_) : text_.npos});
    const std::string value = trim(text_.substr(at_, end - at_));
    const bool is_odd =
        !value.empty() && std::string_view("[]{}&*!|>%@`,#?\t").find(value[0]) != std::string_view::npos;
    if (is_odd || is_list_item(value) || value.find(": ") != value.npos || value.ends_with(':'))
      throw UnclearCard{value};
    if (in_list && value.find_first_of("[]{}") != value.npos) throw UnclearCard{value};
    at_ = end;
    return plain_value(value);
  }

  void skip_blanks() { at_ = std::min(text_.size(), text_.find_first_not_of(' ', at_)); }

  std::string_view text_;
  size_t at_ = 0;
};

class BlockReader {
 public:
  explicit BlockReader(std::vector<CardLine> lines) : lines_(std::move(lines)) {}

  /// The line that is being read.
  const CardLine& line() const { return lines_[std::min(at_, lines_.size() - 1)]; }

  Json read() {
    if (lines_.empty()) return nullptr;
    Json value = block(0);
    if (at_ < lines_.size()) throw UnclearCard{line().text};
    return value;
  }

 private:
  bool is_inside(size_t indent) const { return at_ < lines_.size() && lines_[at_].indent == indent; }

  Json block(int depth) {
    if (depth > kDeepestCard) throw UnclearCard{line().text};
    if (is_list_item(line().text)) return list(line().indent, depth);
    std::string rest;
    if (!key_of(line().text, rest).empty()) return mapping(line().indent, depth);
    Json value = FlowReader(line().text).read();
    ++at_;
    return value;
  }

  Json list(size_t indent, int depth) {
    Json values = Json::array();
    while (is_inside(indent) && is_list_item(lines_[at_].text)) {
      const std::string rest = trim(lines_[at_].text.substr(1));
      if (is_comment(rest)) {
        ++at_;
        values.push_back(at_ < lines_.size() && lines_[at_].indent > indent ? block(depth + 1) : Json());
        continue;
      }
      // YAML lets a block begin on the line of the dash: its indentation then counts from what follows the dash.
      const size_t shift = lines_[at_].text.find_first_not_of(' ', 1);
      lines_[at_].indent += shift;
      lines_[at_].text.erase(0, shift);
      values.push_back(block(depth + 1));
    }
    return values;
  }

  Json mapping(size_t indent, int depth) {
    Json members = Json::object();
    while (is_inside(indent) && !is_list_item(lines_[at_].text)) {
      std::string rest;
      const std::string key = key_of(lines_[at_].text, rest);
      if (key.empty() || members.contains(key)) throw UnclearCard{line().text};
      if (!is_comment(rest)) {
        members[key] = FlowReader(rest).read();
        ++at_;
        continue;
      }
      ++at_;
      const bool is_deeper = at_ < lines_.size() && lines_[at_].indent > indent;
      const bool is_list = is_inside(indent) && is_list_item(lines_[at_].text);
      members[key] = is_deeper || is_list ? block(depth + 1) : Json();
    }
    return members;
  }

  /// The key of "key: rest"; empty if there is none.
  static std::string key_of(const std::string& text, std::string& rest) {
    size_t colon = 0;
    std::string key;
    if (text[0] == '"' || text[0] == '\'') {
      key = read_quoted(text, colon);
      if (colon == text.size() || text[colon] != ':') return {};
    } else {
      const size_t comment = text.find(" #");
      for (colon = text.find(':'); colon != text.npos && colon + 1 < text.size() && text[colon + 1] != ' ';) {
        colon = text.find(':', colon + 1);
      }
      if (colon == text.npos || colon > comment ||
          std::string_view("[{&*!|>%@`?\t").find(text[0]) != std::string_view::npos) {
        return {};
      }
      key = trim(text.substr(0, colon));
    }
    rest = trim(text.substr(colon + 1));
    return key;
  }

  std::vector<CardLine> lines_;
  size_t at_ = 0;
};

/// The lines of "configs", between the two "---" at the beginning of README.md. Nothing without YAML.
std::optional<std::vector<CardLine>> configs_lines(const fs::path& folder) {
  // The file is read as a whole, to find its second "---". A larger README.md is no card, and must not fill the memory.
  constexpr size_t kMost = size_t{16} << 20;
  const fs::path readme = folder / "README.md";
  std::error_code ignored;
  if (!fs::is_regular_file(readme, ignored)) return std::nullopt;
  std::string text = read_text_file(readme, ExitCode::bad_data, kMost);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // UTF-8's mark, which editors of Windows write
  std::vector<std::string> all = split(text, '\n');
  for (std::string& line : all) {
    if (line.ends_with('\r')) line.pop_back();
  }
  const auto begin =
      std::find_if_not(all.begin(), all.end(), [](const std::string& line) { return trim(line).empty(); });
  if (begin == all.end() || !begin->ends_with("---") || trim(*begin) != "---") return std::nullopt;
  const auto end = std::find_if(begin + 1, all.end(),
                                [](const std::string& line) { return line.starts_with("---") && trim(line) == "---"; });
  if (end == all.end()) return std::nullopt;
  std::vector<CardLine> lines;
  bool is_inside = false;
  for (auto line = begin + 1; line != end; ++line) {
    const std::string content = trim(*line);
    const size_t indent = line->find_first_not_of(' ');
    const int64_t number = line - all.begin() + 1;
    if (is_comment(content)) continue;
    const bool is_key = indent == 0 && !is_list_item(content);
    if (!is_key && is_inside) lines.push_back({number, indent, (*line)[indent] == '\t' ? "\t" + content : content});
    if (!is_key) continue;
    is_inside =
        content.starts_with("configs:") || content.starts_with("\"configs\":") || content.starts_with("'configs':");
    const std::string rest = is_inside ? trim(content.substr(content.find(':') + 1)) : std::string();
    if (!is_comment(rest)) lines.push_back({number, indent, rest});
  }
  return lines;
}

std::string text_of(const Json& value, const char* key) {
  if (!value.is_string()) throw UnclearCard{fmt::format("{}: {}", key, json_text(value))};
  return value.get<std::string>();
}

/// A path or pattern, without parts that name its own folder; nothing that leads out of the data set.
std::string pattern_of(const Json& value, const char* key) {
  const std::string text = text_of(value, key);
  std::vector<std::string> parts = split(text, '/');
  std::erase(parts, ".");
  const auto is_odd = [](const std::string& part) {
    return part.empty() || part.starts_with('.') || (part != "**" && part.find("**") != part.npos);
  };
  const bool is_plain = text.find("::") == text.npos && text.find("//") == text.npos && !parts.empty();
  if (!is_plain || std::any_of(parts.begin(), parts.end(), is_odd)) throw UnclearCard{fmt::format("{}: {}", key, text)};
  return join(parts, "/");
}

std::vector<std::string> patterns_of(const Json& value, const char* key) {
  if (!value.is_array()) return {pattern_of(value, key)};
  std::vector<std::string> patterns;
  for (const Json& one : value) patterns.push_back(pattern_of(one, key));
  return patterns;
}

HubPatterns files_of(const Json& value) {
  const bool has_splits =
      value.is_array() && std::any_of(value.begin(), value.end(), [](const Json& one) { return one.is_object(); });
  if (!has_splits) return {{"train", patterns_of(value, "data_files")}};
  HubPatterns files;
  std::set<std::string> names;
  for (const Json& one : value) {
    if (!one.is_object() || one.size() != 2 || !one.contains("split") || !one.contains("path")) {
      throw UnclearCard{"data_files: " + json_text(one)};
    }
    const std::string name = text_of(one["split"], "split");
    if (!names.insert(name).second) throw UnclearCard{fmt::format("split: {} (twice)", name)};
    files.push_back({name, patterns_of(one["path"], "path")});
  }
  return files;
}

HubConfiguration configuration_of(const Json& value) {
  if (!value.is_object() || !value.contains("config_name")) throw UnclearCard{json_text(value)};
  HubConfiguration configuration{text_of(value["config_name"], "config_name")};
  for (const auto& [key, setting] : value.items()) {
    if (key == "default") {
      if (!setting.is_boolean() && !setting.is_null()) throw UnclearCard{"default: " + json_text(setting)};
      configuration.is_default = setting == Json(true);
    } else if (key == "data_dir") {
      if (!setting.is_null() && setting != Json("")) {
        std::string folder = text_of(setting, "data_dir");
        if (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
        if (folder != ".") configuration.data_dir = pattern_of(folder, "data_dir") + "/";
      }
    } else if (key == "data_files") {
      if (!setting.is_null()) configuration.files = files_of(setting);
    } else if (key != "config_name" && key != "version" && key != "description" && key != "features") {
      // Settings of the reader, such as "field", change what is read: guessing would train on other text.
      throw UnclearCard{fmt::format("{}: {}", key, json_text(setting))};
    }
  }
  return configuration;
}

}  // namespace

std::optional<std::vector<HubConfiguration>> read_hub_card(const fs::path& folder) {
  const std::optional<std::vector<CardLine>> lines = configs_lines(folder);
  if (!lines) return std::nullopt;
  std::vector<HubConfiguration> configurations;
  if (lines->empty()) return configurations;
  BlockReader reader(*lines);
  std::string place = "README.md";
  try {
    Json read;
    try {
      read = reader.read();
    } catch (const UnclearCard&) {
      place = fmt::format("README.md:{}", reader.line().number);
      throw;
    }
    if (!read.is_array() && !read.is_null()) throw UnclearCard{json_text(read)};
    for (const Json& one : read) configurations.push_back(configuration_of(one));
  } catch (const UnclearCard& unclear) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: {}: its configs say \"{}\", which is not followed here; name the files with a "
                            "glob.",
                            folder.string(), place, unclear.line.substr(0, 100)));
  }
  return configurations;
}

}  // namespace titan
