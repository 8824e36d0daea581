// What the process knows of itself and its machine: memory in use, processor and host name. Asked by the trainer for
// its start report and its console line. Knows nothing of devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Resident memory of this process now, and its maximum so far, in bytes.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Memory of the machine, or of this process's control group where that is smaller.
int64_t total_memory_bytes();
/// What this process may still take before the machine, its control group or a limit on it says no, when `sharers`
/// processes share the first two evenly. None where the system does not tell.
std::optional<int64_t> memory_left_bytes(int64_t sharers = 1);
std::string processor_name();
std::string host_name();
/// Differs between machines, and is the same for all processes of one until it starts anew; empty where it is unknown.
std::string machine_id();

/// The path of a file in the folder of this process's program.
std::filesystem::path beside_program(std::string_view name);

// What the clock on the wall shows; lengths of time are std::chrono::steady_clock's business.

/// Seconds since 1970.
double wall_time();

/// `seconds` since 1970 as this machine's local time, in strftime's `format`.
std::string local_time(double seconds, const char* format = "%Y-%m-%d %H:%M:%S");

// Which cores a process may run on, and which lie near a device. A launcher may have bound it to a single core (mpirun
// does so for two ranks), or to none of those whose memory its GPU reaches without a detour.

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
