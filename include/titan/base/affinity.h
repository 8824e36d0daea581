// Which cores a process may run on, and which lie near a device. A launcher may have bound it to a single core (mpirun
// does so for two ranks), or to none of those whose memory its GPU reaches without a detour.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Numbers of the cores that this process may run on, rising.
std::vector<int> allowed_cores();
/// All cores of this machine that are switched on, whatever this process may use of them.
int machine_cores();

/// {0, 1, 2, 5} ↔ "0-2,5", as taskset, /proc and /sys write it. What is no such list gives no cores.
std::string core_list(const std::vector<int>& cores);
std::vector<int> parse_core_list(std::string_view text);

/// The cores of the NUMA node that PCI device `pci_id` ("0000:3b:00.0") hangs on, as `sys` (/sys) knows them; none when
/// the machine has one node or does not say.
std::vector<int> cores_near(const std::filesystem::path& sys, const std::string& pci_id);

/// Where a process that may run on `allowed` is better off when its device is near the cores `near`; none: where it is.
/// Two or more of the near cores and nothing else are left as they are: somebody chose them. Of cores of several nodes,
/// the near ones; for a single core, or cores of other nodes alone, all near ones.
std::vector<int> better_cores(const std::vector<int>& allowed, const std::vector<int>& near);

/// Binds this thread, and the threads it starts from here on, to `cores`; false where the system does not let it.
bool bind_to(const std::vector<int>& cores);

}  // namespace titan
