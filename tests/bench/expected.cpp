// Prints docs/benchmarks/h200_expected.md (scripts/bench/expected.sh).
#include <fmt/format.h>

#include "bench/expected_times.h"

int main() {
  fmt::print("{}", titan::expected_times_page());
  return 0;
}
