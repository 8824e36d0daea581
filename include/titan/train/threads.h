// The CPU threads of tensor operations. ATen, oneDNN and MKL divide work among the number of threads that they were
// told; OpenMP may start fewer (OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS), and parts of a result are then
// never written. So the number is counted, not believed.
#pragma once

#include <cstdint>
#include <string>

namespace titan {

struct ThreadTeam {
  int64_t threads = 1;  ///< in a parallel region; given to all libraries
  std::string reason;   ///< in words, if they are fewer than wanted
};

/// Makes tensor operations of this thread use `wanted` threads, or as many as OpenMP gives. First starts and joins as
/// many threads as the libraries will start, since those wait for ever, or exit, when the system refuses one: throws
/// Error(out_of_memory) that names the limit.
ThreadTeam use_threads(int64_t wanted);

}  // namespace titan
