#include "titan/base/control_group.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "titan/base/text.h"

namespace titan {
namespace {

constexpr int64_t kDefaultPeriod = 100000;  // microseconds; the kernel's default, where the quota's file names none

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The words of a file's first line; none if it cannot be read.
std::vector<std::string> first_words(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  std::vector<std::string> found;
  for (std::string word; words >> word;) found.push_back(word);
  return found;
}

/// The number at `index` in the first line; none for "max", a number below 1 and whatever else is no limit.
std::optional<int64_t> positive_number(const std::filesystem::path& path, size_t index = 0) {
  const std::vector<std::string> words = first_words(path);
  const std::optional<int64_t> value = index < words.size() ? whole_number(words[index]) : std::nullopt;
  return value && *value > 0 ? value : std::nullopt;
}

/// The kernel writes space, tab, newline and backslash in a path as \040 and so on.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '\\' && i + 3 < text.size() && std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The value of a line "name 123" in a group's memory.stat; 0 if missing.
int64_t statistic(const std::filesystem::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == wanted) return value;
  }
  return 0;
}

void keep_smaller(std::optional<GroupLimit>& smallest, std::optional<int64_t> limit, std::filesystem::path file) {
  if (limit && (!smallest || *limit < smallest->limit)) smallest = GroupLimit{*limit, std::move(file)};
}

/// `group`, seen through a mount that shows `shown` as its root; empty: the mount itself. A container may see the path
/// that its group has on the host, which is not below what is mounted.
std::filesystem::path below(const std::string& group, const std::string& shown) {
  if (has(split(group, '/'), "..")) return {};
  if (shown == "/") return std::filesystem::path(group).relative_path();
  if (!group.starts_with(shown + "/")) return {};
  return std::filesystem::path(group.substr(shown.size())).relative_path();
}

}  // namespace

ControlGroups::ControlGroups(std::filesystem::path root) : root_(std::move(root)) {
  // The optional fields before " - " vary in number, so the type is found behind it:
  // 36 35 98:0 /group /mount/point rw,noatime master:1 - cgroup cgroup rw,cpu,cpuacct
  std::ifstream mounts(root_ / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, shown, path, type, source, options;
    before >> id >> parent >> device >> shown >> path;
    after >> type >> source >> options;
    if (type != "cgroup" && type != "cgroup2") continue;
    const std::filesystem::path point = std::filesystem::path(unescaped(path)).relative_path();
    mounts_.push_back({type == "cgroup2", split(options, ','), unescaped(shown), root_ / point});
  }
  // 4:cpu,cpuacct:/group, and 0::/group of v2
  std::ifstream groups(root_ / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::vector<std::string> names;
    if (!controllers.empty()) names = split(controllers, ',');
    groups_.emplace_back(std::move(names), line.substr(second + 1));
  }
}

std::vector<ControlGroups::Folder> ControlGroups::folders(const std::string& controller) const {
  std::vector<Folder> found;
  for (const Mount& mount : mounts_) {
    if (!mount.is_v2 && !has(mount.options, controller)) continue;
    const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const auto& one) {
      return mount.is_v2 ? one.first.empty() : has(one.first, controller);
    });
    std::filesystem::path relative = group == groups_.end() ? "" : below(group->second, mount.group);
    std::error_code ignored;
    if (!std::filesystem::is_directory(mount.path / relative, ignored)) relative.clear();
    for (; !relative.empty(); relative = relative.parent_path()) found.push_back({mount.is_v2, mount.path / relative});
    found.push_back({mount.is_v2, mount.path});
  }
  return found;
}

std::optional<GroupLimit> ControlGroups::processors() const {
  std::optional<GroupLimit> smallest;
  for (const auto& [is_v2, folder] : folders("cpu")) {
    const std::filesystem::path file = folder / (is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
    const std::optional<int64_t> quota = positive_number(file);
    if (!quota) continue;
    const int64_t period =
        (is_v2 ? positive_number(file, 1) : positive_number(folder / "cpu.cfs_period_us")).value_or(kDefaultPeriod);
    keep_smaller(smallest, *quota / period + (*quota % period != 0 ? 1 : 0), file);
  }
  return smallest;
}

std::optional<GroupLimit> ControlGroups::memory() const {
  std::optional<GroupLimit> smallest;
  for (const auto& [is_v2, folder] : folders("memory")) {
    const std::filesystem::path file = folder / (is_v2 ? "memory.max" : "memory.limit_in_bytes");
    keep_smaller(smallest, positive_number(file), file);
  }
  return smallest;
}

std::optional<int64_t> ControlGroups::memory_left() const {
  std::optional<int64_t> least;
  for (const auto& [is_v2, folder] : folders("memory")) {
    const std::optional<int64_t> limit = positive_number(folder / (is_v2 ? "memory.max" : "memory.limit_in_bytes"));
    if (!limit) continue;
    const int64_t used = positive_number(folder / (is_v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const int64_t droppable = statistic(folder / "memory.stat", is_v2 ? "inactive_file" : "total_inactive_file");
    const int64_t left = std::max(*limit - std::max(used - droppable, int64_t{0}), int64_t{0});
    least = std::min(least.value_or(left), left);
  }
  return least;
}

std::optional<GroupLimit> ControlGroups::tasks() const {
  std::optional<GroupLimit> smallest;
  for (const auto& [is_v2, folder] : folders("pids")) {
    const std::filesystem::path file = folder / "pids.max";
    keep_smaller(smallest, positive_number(file), file);
  }
  return smallest;
}

}  // namespace titan
