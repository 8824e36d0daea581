// How long a fuzzer of one reader goes on.
#pragma once

#include <chrono>
#include <cstdlib>

namespace titan::test {

/// TITAN_FUZZ_SECONDS, which ctest sets (cmake/Tests.cmake); a moment for who runs the program by hand.
inline std::chrono::duration<double> fuzz_time() {
  const char* const seconds = std::getenv("TITAN_FUZZ_SECONDS");
  return std::chrono::duration<double>(seconds ? std::atof(seconds) : 0.5);
}

}  // namespace titan::test
