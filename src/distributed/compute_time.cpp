// In a file of its own, so that a test's linker can replace it (cmake/Tests.cmake).
#include <chrono>

#include "titan/distributed/communicator.h"

namespace titan {

double compute_time() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace titan
