#include "optimizer.h"

#include <cstdlib>
#include <cstring>

#include "titan/kernels/adam.h"

namespace mock_cuda {

bool optimizer_counts() {
  static const bool it = std::getenv("MOCK_CUDA_OPTIMIZER") != nullptr;
  return it;
}

std::function<void()> work_of(const std::string& name, void** arguments) {
  if (!optimizer_counts() || name.find("(titan::AdamStep") == std::string::npos) return nullptr;
  titan::AdamStep step;
  std::memcpy(&step, arguments[0], sizeof step);
  return [step] {
    for (int64_t i = 0; i < step.count; ++i) {
      step.weight[i] += 1;
      step.first[i] += 2;
      step.second[i] += 3;
    }
  };
}

}  // namespace mock_cuda
