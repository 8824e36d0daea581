// What the process knows of itself and its machine: memory in use, processor and host name. Asked by the trainer for
// its start report and its console line. Knows nothing of devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace titan
