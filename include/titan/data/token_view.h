// Token ids that lie in somebody else's memory, two or four bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace titan {

struct TokenView {
  const void* data = nullptr;
  size_t size = 0;   ///< tokens
  size_t width = 2;  ///< bytes a token: 2 or 4

  /// Adds the ids to the end of `ids`.
  void append_to(std::vector<int32_t>& ids) const {
    const size_t before = ids.size();
    ids.resize(before + size);
    int32_t* out = ids.data() + before;
    if (width == 4) {
      std::memcpy(out, data, size * sizeof(int32_t));
      return;
    }
    const auto* narrow = static_cast<const uint16_t*>(data);
    for (size_t i = 0; i < size; ++i) out[i] = narrow[i];
  }
};

}  // namespace titan
