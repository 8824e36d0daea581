// Qwen 2 and 3 (dense): Llama's units, with biases on queries, keys and values (Qwen 2 and 2.5) or a norm on every
// query and key head (Qwen 3). Sizes come from the config (flavor "custom", or model.from_hf). Included only by this
// folder, the registry and tests.
#pragma once

#include "titan/model/model.h"

namespace titan {

const ModelFamily& qwen_family();

}  // namespace titan
