#pragma once

#include <fmt/format.h>

#include <string>

#include "titan/stream/chunk_stream.h"

namespace titan::test {

/// The counts that survive a resume, as one line.
inline std::string so_far(const DataCounters& counters) {
  return fmt::format("{} bad records, {} malformed, {} loops, {} long", counters.bad_records, counters.invalid_utf8,
                     counters.re_loops, counters.long_conversations);
}

}  // namespace titan::test
