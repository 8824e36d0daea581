// How libraries say that memory has run out, on the host or on a device.
#pragma once

#include <string_view>

namespace titan {

/// Whether a library's message says so.
bool tells_out_of_memory(std::string_view message);

}  // namespace titan
