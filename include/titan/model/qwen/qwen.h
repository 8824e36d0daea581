// Qwen 2 and 3 (dense) as tensors: the models that plan/qwen.h describes. Included only by this folder, the registry
// and tests.
#pragma once

#include "titan/model/model.h"

namespace titan {

const ModelFamily& qwen_family();

}  // namespace titan
