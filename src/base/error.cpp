#include "titan/base/error.h"

namespace titan::detail {

void fail_check(const char* condition, const char* file, int line, const std::string& values) {
  std::string_view path = file;
  if (size_t at = path.rfind("/src/"); at != std::string_view::npos) path.remove_prefix(at + 1);
  throw InvariantError(fmt::format("internal error: {}{} does not hold at {}:{}", condition, values, path, line));
}

}  // namespace titan::detail
