#include "titan/base/out_of_memory.h"

#include <algorithm>
#include <array>

namespace titan {

bool tells_out_of_memory(std::string_view message) {
  // The last one is CUDA's libraries': CUBLAS_STATUS_ALLOC_FAILED and its like.
  constexpr std::array<std::string_view, 3> kWords{"can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED"};
  return std::any_of(kWords.begin(), kWords.end(), [&](auto words) { return message.find(words) != message.npos; });
}

}  // namespace titan
