// The family's state-dict adapter, for the registry.
#pragma once

#include "titan/model/state_dict_adapter.h"

namespace titan {

const StateDictAdapter& llama_adapter();

}  // namespace titan
