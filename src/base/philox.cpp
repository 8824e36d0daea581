#include "titan/base/philox.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {

uint64_t name_key(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

}  // namespace titan
