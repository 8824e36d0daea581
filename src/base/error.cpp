#include "titan/base/error.h"

#include <algorithm>
#include <array>

namespace titan::detail {

void fail_check(const char* condition, const char* file, int line, const std::string& values) {
  std::string_view path = file;
  if (size_t at = path.rfind("/src/"); at != std::string_view::npos) path.remove_prefix(at + 1);
  throw InvariantError(fmt::format("internal error: {}{} does not hold at {}:{}", condition, values, path, line));
}

}  // namespace titan::detail

namespace titan {

bool reports_out_of_memory(std::string_view message) {
  // The last entry matches CUDA library status codes such as CUBLAS_STATUS_ALLOC_FAILED.
  constexpr std::array<std::string_view, 3> kWords{"can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED"};
  return std::any_of(kWords.begin(), kWords.end(), [&](auto words) { return message.find(words) != message.npos; });
}

}  // namespace titan
