// Qwen 2 and 3 (dense), without tensors: Llama's units, with biases on queries, keys and values (Qwen 2 and 2.5) or a
// norm on every query and key head (Qwen 3). Included only by the registry, the family that builds them and tests.
#pragma once

#include "titan/plan/llama.h"

namespace titan {

/// The ordinal of the norm of query heads, after the block's own norms; that of key heads follows.
inline constexpr int kFirstHeadNorm = 2;

LlamaArguments qwen_arguments(const ModelRequest& request);
const Architecture& qwen_architecture();

}  // namespace titan
