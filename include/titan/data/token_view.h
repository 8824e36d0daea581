// Token ids that lie in somebody else's memory, two or four bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace titan {

struct TokenView {
  const void* data = nullptr;
  size_t size = 0;   ///< tokens
  size_t width = 2;  ///< bytes a token: 2 or 4

  /// Adds the ids to the end of `ids`.
  void append_to(std::vector<int32_t>& ids) const;
};

}  // namespace titan
