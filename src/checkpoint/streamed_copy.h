// Copies of memory that nobody reads soon, such as those that wait to be written.
#pragma once

#include <cstddef>

namespace titan {

/// memcpy on ATen's threads. Stores go past the caches: memory is not read before it is overwritten, which is a third
/// of the traffic, and training finds its own data where it left them.
void copy_streamed(void* to, const void* from, size_t bytes);

}  // namespace titan
