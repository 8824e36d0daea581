// An exception as what the user gets to see of it: an exit code and one sentence. Used by `main`, and by a rank that
// tells the others why it ends.
#pragma once

#include <exception>
#include <string>

#include "titan/base/error.h"

namespace titan {

struct Failure {
  ExitCode code;
  std::string text;
};

/// Total: an exception of any kind becomes a Failure. A lost connection inside a collective is a failed peer.
Failure describe_failure(const std::exception_ptr& error);

}  // namespace titan
