// LibTorch's exceptions, and all others, as what the user gets to see. Used by the program, and by a rank that tells
// the others why it ends.
#pragma once

#include "titan/cli/program.h"

namespace titan {

/// Total: an exception of any kind becomes a Failure. A lost connection inside a collective is a failed peer.
Failure describe_failure(const std::exception_ptr& error);

}  // namespace titan
