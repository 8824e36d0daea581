#include "titan/base/philox.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {

uint64_t name_key(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

uint32_t PhiloxSequence::next() {
  if (used_ == block_.size()) {
    block_ = philox_at(key_, stream_, index_++);
    used_ = 0;
  }
  return block_[used_++];
}

}  // namespace titan
