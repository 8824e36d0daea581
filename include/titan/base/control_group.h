// Limits that control groups (cgroup v1 and v2) set for this process: CPU quota, memory, number of tasks. A limit of an
// ancestor holds as well as that of the own group, so all groups up to the mount are read. A file that is missing or
// cannot be read sets no limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace titan {

/// The group that sets the smallest limit, and that limit.
struct GroupLimit {
  int64_t limit = 0;
  std::filesystem::path file;  ///< that holds the limit
};

class ControlGroups {
 public:
  /// Of this process: reads /proc/self/cgroup and /proc/self/mountinfo. `root` replaces "/" (tests).
  explicit ControlGroups(std::filesystem::path root = "/");

  /// Processors: the smallest CPU quota, rounded up.
  std::optional<GroupLimit> processors() const;
  /// Bytes.
  std::optional<GroupLimit> memory() const;
  /// Bytes that can still be allocated under every memory limit; page cache that can be dropped counts as free.
  std::optional<int64_t> memory_left() const;
  /// Processes and threads together.
  std::optional<GroupLimit> tasks() const;

 private:
  struct Mount {
    bool is_v2 = false;
    std::vector<std::string> options;  // controllers of a v1 hierarchy, among others
    std::string group;                 // that the mount shows as its root
    std::filesystem::path path;
  };
  struct Folder {
    bool is_v2 = false;
    std::filesystem::path path;
  };

  /// The groups of one controller, the own one first; of all hierarchies that have it.
  std::vector<Folder> folders(const std::string& controller) const;

  std::filesystem::path root_;
  std::vector<Mount> mounts_;
  std::vector<std::pair<std::vector<std::string>, std::string>> groups_;  // controllers (none: v2), path
};

}  // namespace titan
