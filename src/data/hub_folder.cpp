#include "hub_folder.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& folder, const std::string& what) {
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}.", folder.string(), what));
}

/// The lines between the two "---" at the beginning of README.md: YAML that describes the data set.
std::vector<std::string> front_matter(const fs::path& folder) {
  constexpr size_t kMost = size_t{16} << 20;
  const fs::path readme = folder / "README.md";
  std::error_code ignored;
  if (!fs::is_regular_file(readme, ignored)) return {};
  std::vector<std::string> lines = split(read_file(readme, ExitCode::bad_data, kMost), '\n');
  for (std::string& line : lines) line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  if (lines.empty() || lines[0] != "---") return {};
  const auto end = std::find(lines.begin() + 1, lines.end(), "---");
  return end == lines.end() ? std::vector<std::string>() : std::vector<std::string>(lines.begin() + 1, end);
}

bool has_key(const std::vector<std::string>& lines, std::string_view key) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(key); });
}

struct Configuration {
  struct Files {
    std::string split, pattern;
  };
  std::string name = "default";
  bool is_default = false;
  std::vector<Files> files = {};
};

/// Reads the list "configs" of the front matter, in the block form that the hub writes.
class ConfigurationReader {
 public:
  explicit ConfigurationReader(const fs::path& folder) : folder_(folder) {}

  std::vector<Configuration> read(const std::vector<std::string>& lines) {
    bool inside = false;
    for (const std::string& line : lines) {
      const bool at_left = !line.empty() && line[0] != ' ' && line[0] != '-' && line[0] != '#';
      if (at_left) inside = line.starts_with("configs:");
      if (inside && !at_left) read_line(trim(line));
    }
    return std::move(all_);
  }

 private:
  static std::string unquoted(std::string text) {
    const bool quoted = text.size() > 1 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
    return quoted ? text.substr(1, text.size() - 2) : text;
  }

  [[noreturn]] void unclear(const std::string& line) const {
    fail(folder_, fmt::format("README.md says in its configs \"{}\", which is not followed here; name the files with a "
                              "glob",
                              line));
  }

  void read_line(std::string line) {
    if (line.empty() || line[0] == '#') return;
    const bool is_item = line.starts_with("- ");
    if (is_item) line = trim(line.substr(2));
    const size_t colon = line.find(':');
    const bool is_pair = colon != line.npos && (colon + 1 == line.size() || line[colon + 1] == ' ');
    if (!is_pair && !(is_item && expects_patterns_)) unclear(line);
    if (!is_pair) return add_pattern(unquoted(line));
    const std::string key = line.substr(0, colon), value = unquoted(trim(line.substr(colon + 1)));
    expects_patterns_ = false;
    if (key == "config_name") {
      all_.push_back({value});
      split_ = "train";
      return;
    }
    if (all_.empty()) unclear(line);
    if (key == "default") all_.back().is_default = value == "true";
    if (key == "split") split_ = value;
    if (key == "data_dir") unclear(line);
    if (key != "data_files" && key != "path") return;
    if (value.starts_with('[') || value.starts_with('{')) unclear(line);
    expects_patterns_ = value.empty();
    if (!value.empty()) add_pattern(value);
  }

  void add_pattern(const std::string& pattern) {
    if (all_.empty()) unclear(pattern);
    all_.back().files.push_back({split_, pattern});
  }

  const fs::path& folder_;
  std::vector<Configuration> all_;
  std::string split_ = "train";
  bool expects_patterns_ = false;  // list items are patterns
};

const Configuration& chosen(const fs::path& folder, const std::vector<Configuration>& all) {
  if (all.size() == 1) return all[0];
  const auto is_default = [](const Configuration& one) { return one.is_default || one.name == "default"; };
  const auto found = std::find_if(all.begin(), all.end(), is_default);
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  for (const Configuration& one : all) names.push_back(one.name);
  fail(folder, fmt::format("README.md names the configurations {} and none as the default; name the files of one with "
                           "a glob",
                           join(names, ", ")));
}

/// The split that `datasets` gives a file by the words of its path; empty: none.
std::string split_of(const std::string& path) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kWords{{{"train", "train"},
                                                                                  {"training", "train"},
                                                                                  {"test", "test"},
                                                                                  {"testing", "test"},
                                                                                  {"eval", "test"},
                                                                                  {"evaluation", "test"},
                                                                                  {"validation", "validation"},
                                                                                  {"valid", "validation"},
                                                                                  {"dev", "validation"},
                                                                                  {"val", "validation"}}};
  for (const auto& [word, split] : kWords) {
    for (size_t at = path.find(word); at != path.npos; at = path.find(word, at + 1)) {
      const auto is_between = [&](size_t place) {
        return place >= path.size() || std::string_view("/-._ 0123456789").find(path[place]) != std::string_view::npos;
      };
      if ((at == 0 || is_between(at - 1)) && is_between(at + word.size())) return std::string(split);
    }
  }
  return {};
}

/// The split of each file of the folder that `datasets` reads.
std::map<fs::path, std::string> splits_of(const fs::path& folder, const std::vector<std::string>& lines,
                                          const std::vector<fs::path>& files, std::string& how) {
  std::map<fs::path, std::string> splits;
  const std::vector<Configuration> configurations = ConfigurationReader(folder).read(lines);
  if (configurations.empty() || chosen(folder, configurations).files.empty()) {
    for (const fs::path& file : files) splits[file] = split_of(file.lexically_relative(folder).string());
    return splits;
  }
  const Configuration& configuration = chosen(folder, configurations);
  how = fmt::format("the configuration {} of README.md, ", configuration.name);
  for (const auto& [split, pattern] : configuration.files) {
    const int flags = pattern.find("**") == pattern.npos ? FNM_PATHNAME | FNM_PERIOD : 0;
    for (const fs::path& file : files) {
      const std::string path = file.lexically_relative(folder).string();
      if (::fnmatch(pattern.c_str(), path.c_str(), flags) == 0) splits.emplace(file, split);
    }
  }
  return splits;
}

}  // namespace

bool is_saved_dataset(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::is_regular_file(folder / name, ignored); };
  return has("dataset_dict.json") || (has("state.json") && has("dataset_info.json"));
}

bool describes_dataset(const std::string& name) {
  return name == "dataset_infos.json" || name == "dataset_info.json" || name == "config.json";
}

void choose_hub_files(const fs::path& folder, TextFiles& found, const std::vector<fs::path>& others) {
  const std::vector<std::string> lines = front_matter(folder);
  const bool described = std::any_of(others.begin(), others.end(), [](const fs::path& file) {
    return file.filename() == "dataset_infos.json" || file.filename() == "dataset_info.json";
  });
  if (!described && !has_key(lines, "configs:") && !has_key(lines, "dataset_info:")) return;
  std::vector<fs::path> all = found.files;
  for (const fs::path& file : others) {
    const std::string name = file.filename().string();
    if (!describes_dataset(name) && name != "README.md" && name != "LICENSE") all.push_back(file);
  }
  std::string how;
  const std::map<fs::path, std::string> splits = splits_of(folder, lines, all, how);
  std::map<std::string, std::vector<fs::path>> by_split;
  for (const auto& [file, split] : splits) {
    if (!split.empty()) by_split[split].push_back(file);
  }
  if (by_split.empty()) return;  // all files are of the split "train"
  if (by_split.size() > 1 && !by_split.contains("train")) {
    std::vector<std::string> names;
    for (const auto& [split, files] : by_split) names.push_back(split);
    fail(folder, fmt::format("this data set has the splits {} and none for training; name the files of one with a glob",
                             join(names, ", ")));
  }
  const auto& [split, files] = by_split.contains("train") ? *by_split.find("train") : *by_split.begin();
  for (const fs::path& file : files) {
    if (text_form(file) != TextForm::none) continue;
    const FileKind kind = file_kind_at(file);
    if (kind == FileKind::other && found.files.empty()) return;  // the caller names the file
    if (kind == FileKind::other) continue;
    fail(folder, fmt::format("{}: {}", file.lexically_relative(folder).string(), describe_kind(kind)));
  }
  std::vector<fs::path> read;
  std::copy_if(files.begin(), files.end(), std::back_inserter(read),
               [](const fs::path& file) { return text_form(file) != TextForm::none; });
  const size_t left = found.files.size() - read.size();
  found.files = std::move(read);
  if (left == 0 && how.empty()) return;
  found.notices.push_back(
      fmt::format("corpus {}: this is a data set of the hub; {}the split {} is read ({} of {} files)", folder.string(),
                  how, split, found.files.size(), found.files.size() + left));
}

}  // namespace titan
