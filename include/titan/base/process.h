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
/// Bytes that this process can still allocate within the memory of the machine, its control group and its own limits,
/// when `sharers` processes share the first two evenly. None where the system reports no limit.
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

// CPU affinity. A launcher may have bound the process to a single core (mpirun does so for two ranks), or to cores of
// another NUMA node than its GPU's.

/// Numbers of the cores that this process may run on, ascending.
std::vector<int> allowed_cores();
/// Number of online cores of this machine, whatever this process may use of them.
int machine_cores();

/// {0, 1, 2, 5} ↔ "0-2,5", the format of taskset, /proc and /sys. Malformed text gives no cores.
std::string core_list(const std::vector<int>& cores);
std::vector<int> parse_core_list(std::string_view text);

/// The cores of the NUMA node of PCI device `pci_id` ("0000:3b:00.0"), read from `sys` (/sys); none when the machine
/// has one node or does not report it.
std::vector<int> cores_near(const std::filesystem::path& sys, const std::string& pci_id);

/// The cores to bind a process to that may run on `allowed` and whose device is close to `near`; none: no change.
/// `allowed` with two or more cores, all near, is a deliberate choice: no change. Cores of several nodes: the near ones
/// of them. A single core, or only cores of other nodes: all near ones.
std::vector<int> better_cores(const std::vector<int>& allowed, const std::vector<int>& near);

/// Binds this thread, and the threads it starts from here on, to `cores`; false where the system does not let it.
bool bind_to(const std::vector<int>& cores);

}  // namespace titan
