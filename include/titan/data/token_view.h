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
  void append_to(std::vector<int32_t>& ids) const {
    if (width == 4) {
      const auto* wide = static_cast<const int32_t*>(data);
      ids.insert(ids.end(), wide, wide + size);
    } else {
      const auto* narrow = static_cast<const uint16_t*>(data);
      ids.insert(ids.end(), narrow, narrow + size);
    }
  }
};

}  // namespace titan
