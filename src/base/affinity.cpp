#include "titan/base/affinity.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>

#include "titan/base/text.h"

namespace titan {
namespace {

/// A number of cores that no list of a real machine exceeds.
constexpr int kMostCores = 1 << 20;

/// A mask as large as its last core needs: one of fixed size does not reach the last cores of the largest machines.
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
    if (::sched_getaffinity(0, allowed.bytes, allowed.mask.get()) != 0) continue;  // the machine has more
    std::vector<int> cores;
    for (int core = 0; core < most; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), allowed.bytes, allowed.mask.get())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

int machine_cores() { return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))); }

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
  return ::sched_setaffinity(0, wanted.bytes, wanted.mask.get()) == 0;
}

}  // namespace titan
