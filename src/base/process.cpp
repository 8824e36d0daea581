#include "titan/base/process.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "titan/base/text.h"

namespace titan {
namespace {

int64_t read_limit(const char* path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : std::numeric_limits<int64_t>::max();
}

}  // namespace

std::filesystem::path beside_program(std::string_view name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t total_memory_bytes() {
  struct sysinfo info {};
  ::sysinfo(&info);
  const int64_t machine = static_cast<int64_t>(info.totalram) * info.mem_unit;
  return std::min(machine, read_limit("/sys/fs/cgroup/memory.max"));
}

namespace {

/// A line "Name:  123 kB" of a file of /proc; 0 when it is not there.
int64_t kilobytes_line(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

/// What the group of processes this one is in may still take; file pages that can be dropped count as free.
int64_t group_left_bytes() {
  const int64_t limit = read_limit("/sys/fs/cgroup/memory.max");
  if (limit == std::numeric_limits<int64_t>::max()) return limit;
  int64_t droppable = 0;
  std::ifstream statistics("/sys/fs/cgroup/memory.stat");
  for (std::string name; statistics >> name;) {
    int64_t bytes = 0;
    statistics >> bytes;
    if (name == "inactive_file") droppable = bytes;
  }
  std::ifstream file("/sys/fs/cgroup/memory.current");
  int64_t used = 0;
  file >> used;
  return std::max(limit - std::max(used - droppable, int64_t{0}), int64_t{0});
}

}  // namespace

std::optional<int64_t> memory_left_bytes(int64_t sharers) {
  const int64_t available = kilobytes_line("/proc/meminfo", "MemAvailable");
  if (available == 0) return std::nullopt;
  int64_t left = std::min(available, group_left_bytes()) / sharers;
  const auto consider = [&](auto resource, const char* taken) {
    struct rlimit limit {};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const int64_t rest = static_cast<int64_t>(limit.rlim_cur) - kilobytes_line("/proc/self/status", taken);
    left = std::min(left, std::max(rest, int64_t{0}));
  };
  consider(RLIMIT_AS, "VmSize");
  consider(RLIMIT_DATA, "VmData");
  return left;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return trim(line.substr(line.find(':') + 1));
  }
  return "CPU";
}

std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace titan
