// What this program was built from and for: the text of `titan_train --version`.
#pragma once

#include <string>

namespace titan {

/// "titan_train 0.1.0", then one line each for commit, LibTorch, CUDA, NCCL and the kernels built.
std::string version_text();

/// "0.1.0 (commit)", for files that say what wrote them.
std::string short_version();

}  // namespace titan
