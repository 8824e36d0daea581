// What the clock on the wall shows; lengths of time are std::chrono::steady_clock's business.
#pragma once

#include <string>

namespace titan {

/// Seconds since 1970.
double wall_time();

/// `seconds` since 1970 as this machine's local time, in strftime's `format`.
std::string local_time(double seconds, const char* format = "%Y-%m-%d %H:%M:%S");

}  // namespace titan
