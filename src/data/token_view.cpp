#include "titan/data/token_view.h"

#include "widen.h"

namespace titan {

void TokenView::append_to(std::vector<int32_t>& ids) const {
  if (width == 4) {
    const auto* wide = static_cast<const int32_t*>(data);
    ids.insert(ids.end(), wide, wide + size);
    return;
  }
  const size_t before = ids.size();
  ids.resize(before + size);
  widen(static_cast<const uint16_t*>(data), static_cast<int64_t>(size), ids.data() + before);
}

}  // namespace titan
