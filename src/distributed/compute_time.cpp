#include "titan/distributed/compute_time.h"

#include <chrono>

namespace titan {

double compute_time() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace titan
