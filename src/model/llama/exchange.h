// The family's forms at other programs, for the registry.
#pragma once

#include "titan/model/exchange.h"

namespace titan {

const StateDictAdapter& llama_adapter();

}  // namespace titan
