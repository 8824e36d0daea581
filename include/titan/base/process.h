// Facts about this process and its machine: memory use, processor and host name. Used by the trainer's start report and
// console line. Knows nothing of devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Current and peak resident memory of this process, in bytes.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Memory of the machine, or of this process's control groups if that is smaller (control_group.h).
int64_t total_memory_bytes();
/// Bytes that this process can still allocate within the limits of the machine, its control group and itself, if
/// `sharers` processes share the first two evenly. None if the system reports no limit.
std::optional<int64_t> memory_left_bytes(int64_t sharers = 1);
std::string processor_name();

/// A thread that did not end in time was detached, and may still run when the process ends: then static objects must
/// not be destroyed, because the thread uses them.
void leave_thread_behind();
bool has_left_threads();

std::string host_name();
/// Identifies the machine until it reboots: the same for all its processes. Empty if unknown.
std::string machine_id();

/// The path of a file in the folder of the running program's executable.
std::filesystem::path beside_program(std::string_view name);

/// 128 random bits of the machine as hexadecimal digits: a secret that a launcher passes to its ranks, or a nonce.
std::string random_secret();

// Wall-clock time; for durations use std::chrono::steady_clock.

/// Seconds since 1970.
double wall_time();

/// `seconds` since 1970 as this machine's local time, in strftime's `format`.
std::string local_time(double seconds, const char* format = "%Y-%m-%d %H:%M:%S");

// CPU affinity. A launcher may have bound the process to a single core (mpirun does so for two ranks), or to cores of
// another NUMA node than its GPU's.

/// The cores that this process may run on, ascending.
std::vector<int> allowed_cores();
/// Number of online cores of this machine, including those that this process may not use.
int machine_cores();

/// Processors that this process may use: its cores, or the CPU quota of its control groups if that is smaller.
int64_t usable_processors();
/// OMP_NUM_THREADS; none if it is not set or not a positive number.
std::optional<int64_t> openmp_threads();
/// Threads of a computation that are not configured: one per processor, at most OMP_NUM_THREADS.
int64_t default_threads(int64_t processors = usable_processors());
/// What limits the number of threads, in words: "ulimit -u is 64".
std::string task_limit();

/// {0, 1, 2, 5} ↔ "0-2,5", the format of taskset, /proc and /sys. Malformed text gives an empty list.
std::string core_list(const std::vector<int>& cores);
std::vector<int> parse_core_list(std::string_view text);

/// The cores of the NUMA node of PCI device `pci_id` ("0000:3b:00.0"), read from `sys` (/sys); none when the machine
/// has one node or does not report it.
std::vector<int> cores_near(const std::filesystem::path& sys, const std::string& pci_id);

/// The cores to bind a process to, if it may run on `allowed` and its device is close to `near`; empty: keep the
/// affinity. Two or more `allowed` cores, all near, are a deliberate choice: no change. Cores of several nodes: the
/// near ones among them. A single core, or only cores of other nodes: all near ones.
std::vector<int> better_cores(const std::vector<int>& allowed, const std::vector<int>& near);

/// Binds this thread, and threads that it starts later, to `cores` (ascending); false if the system refuses one.
bool bind_to(const std::vector<int>& cores);

/// Clock and temperature of the processors, where the system reports them: they may explain a slow rank.
struct ProcessorState {
  std::optional<double> megahertz;  // the lowest of the cores that this process may use
  std::optional<double> celsius;    // the hottest sensor
};

/// Reads clock rates from /sys/devices/system/cpu, or else from /proc/cpuinfo, and temperatures from
/// /sys/class/thermal. Values that cannot be read are none.
ProcessorState processor_state(const std::filesystem::path& sys = "/sys", const std::filesystem::path& proc = "/proc");

}  // namespace titan
