// How long a fuzzer of one reader goes on.
#pragma once

#include <chrono>
#include <cstdlib>

namespace titan::test {

/// TITAN_FUZZ_SECONDS (scripts/test.sh --full sets 60), else three seconds.
inline std::chrono::duration<double> fuzz_time() {
  const char* const seconds = std::getenv("TITAN_FUZZ_SECONDS");
  return std::chrono::duration<double>(seconds ? std::atof(seconds) : 3.0);
}

}  // namespace titan::test
