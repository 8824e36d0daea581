// Products of the mock GPU compute nothing, but for this: with MOCK_CUDA_GRADIENTS set a product of bf16 operands into
// fp32, which is what makes a weight's gradient, fills its result with a number that no other has. So who reads a
// gradient can check that it is the right one, and whether it was there yet.
#pragma once

#include <cstdint>
#include <functional>

namespace mock_cuda {

/// What fills `columns` columns of `rows` numbers each, which begin `leading` numbers apart; null where none is wanted.
std::function<void()> filling(void* result, int64_t rows, int64_t columns, int64_t leading);

}  // namespace mock_cuda
