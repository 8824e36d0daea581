#include "gradients.h"

#include <algorithm>
#include <cstdlib>

namespace mock_cuda {

std::function<void()> filling(void* result, int64_t rows, int64_t columns, int64_t leading) {
  static const bool wanted = std::getenv("MOCK_CUDA_GRADIENTS") != nullptr;
  if (!wanted) return nullptr;
  static int64_t filled = 0;  // works run one at a time
  return [=] {
    const auto number = static_cast<float>(++filled);
    for (int64_t column = 0; column < columns; ++column) {
      std::fill_n(static_cast<float*>(result) + column * leading, rows, number);
    }
  };
}

}  // namespace mock_cuda
