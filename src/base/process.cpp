#include "titan/base/process.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "titan/base/control_group.h"
#include "titan/base/text.h"

namespace titan {

std::filesystem::path beside_program(std::string_view name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

std::string random_secret() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
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
  const std::optional<GroupLimit> group = ControlGroups().memory();
  return group ? std::min(machine, group->limit) : machine;
}

namespace {

/// The value of a line "Name:  123 kB" in a /proc file; 0 if missing.
int64_t kilobytes_line(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

}  // namespace

std::optional<int64_t> memory_left_bytes(int64_t sharers) {
  const int64_t available = kilobytes_line("/proc/meminfo", "MemAvailable");
  if (available == 0) return std::nullopt;
  int64_t left = std::min(available, ControlGroups().memory_left().value_or(available)) / sharers;
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

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string local_time(double seconds, const char* format) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm local{};
  ::localtime_r(&time, &local);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &local)};
}

namespace {

/// More cores than any machine has: ends the doubling below if the kernel fails for another reason than a small mask.
constexpr int kMostCores = 1 << 20;

/// A CPU mask sized for `cores`: the fixed-size cpu_set_t is too small for the largest machines.
struct CoreMask {
  explicit CoreMask(int cores)
      : bytes(CPU_ALLOC_SIZE(cores)), mask(CPU_ALLOC(static_cast<size_t>(cores)), [](cpu_set_t* m) { CPU_FREE(m); }) {
    CPU_ZERO_S(bytes, mask.get());
  }

  size_t bytes;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask;
};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trim(line);
}

}  // namespace

std::vector<int> allowed_cores() {
  for (int most = CPU_SETSIZE; most <= kMostCores; most *= 2) {
    const CoreMask allowed(most);
    // The kernel refuses a mask that is smaller than its own, whose size it does not tell: double until it fits.
    if (::sched_getaffinity(0, allowed.bytes, allowed.mask.get()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < most; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), allowed.bytes, allowed.mask.get())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

int machine_cores() { return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))); }

int64_t usable_processors() {
  const std::vector<int> cores = allowed_cores();
  const int64_t allowed = cores.empty() ? machine_cores() : std::ssize(cores);
  const std::optional<GroupLimit> quota = ControlGroups().processors();
  return quota ? std::min(allowed, quota->limit) : allowed;
}

std::optional<int64_t> openmp_threads() {
  // A list has a number for each nested level; only the outermost starts threads here.
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const std::string first = text ? trim(split(text, ',').front()) : "";
  int64_t threads = 0;
  const auto [end, problem] = std::from_chars(first.data(), first.data() + first.size(), threads);
  const bool is_number = problem == std::errc() && end == first.data() + first.size();
  return is_number && threads > 0 ? std::optional(threads) : std::nullopt;
}

int64_t default_threads(int64_t processors) { return std::min(processors, openmp_threads().value_or(processors)); }

std::string task_limit() {
  std::vector<std::string> limits;
  struct rlimit limit {};
  // The kernel reports a thread whose stack finds no memory like one beyond the limit of threads.
  const std::array<std::pair<int, const char*>, 2> of_memory{{{RLIMIT_AS, "-v"}, {RLIMIT_DATA, "-d"}}};
  for (const auto& [which, option] : of_memory) {
    if (::getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    limits.push_back(std::string(limits.empty() ? "out of memory or threads: " : "") + "ulimit " + option + " is " +
                     std::to_string(limit.rlim_cur / 1024) + " kB");
  }
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    limits.push_back("ulimit -u is " + std::to_string(limit.rlim_cur));
  }
  if (const std::optional<GroupLimit> group = ControlGroups().tasks()) {
    limits.push_back(group->file.string() + " is " + std::to_string(group->limit));
  }
  return limits.empty() ? "see ulimit -u, ulimit -v and pids.max of the control group" : join(limits, ", ");
}

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (size_t begin = 0; begin < cores.size();) {
    size_t end = begin + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(cores[begin]);
    if (end - begin > 1) text += '-' + std::to_string(cores[end - 1]);
    begin = end;
  }
  return text;
}

std::vector<int> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  for (const std::string& part : split(trim(text), ',')) {
    const char* end = part.data() + part.size();
    int first = 0;
    std::from_chars_result read = std::from_chars(part.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || read.ptr != end || first < 0 || last < first || last >= kMostCores) return {};
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

std::vector<int> cores_near(const std::filesystem::path& sys, const std::string& pci_id) {
  const std::string node = first_line(sys / "bus/pci/devices" / pci_id / "numa_node");
  if (node.empty() || node == "-1") return {};
  return parse_core_list(first_line(sys / "devices/system/node" / ("node" + node) / "cpulist"));
}

std::vector<int> better_cores(const std::vector<int>& allowed, const std::vector<int>& near) {
  std::vector<int> both;
  std::set_intersection(allowed.begin(), allowed.end(), near.begin(), near.end(), std::back_inserter(both));
  if (both.size() < 2) return near == allowed ? std::vector<int>{} : near;
  return both == allowed ? std::vector<int>{} : both;
}

bool bind_to(const std::vector<int>& cores) {
  if (cores.empty()) return false;
  CoreMask wanted(*std::max_element(cores.begin(), cores.end()) + 1);
  for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), wanted.bytes, wanted.mask.get());
  if (::sched_setaffinity(0, wanted.bytes, wanted.mask.get()) != 0) return false;
  return allowed_cores() == cores;  // the kernel leaves out cores that a cpuset forbids without an error
}

namespace {
std::atomic<bool> left_threads = false;
}

void leave_thread_behind() { left_threads = true; }
bool has_left_threads() { return left_threads; }

}  // namespace titan
