// The family's state-dict adapter.
#pragma once

#include "titan/model/state_dict_adapter.h"

namespace titan {

const StateDictAdapter& qwen_adapter();

}  // namespace titan
