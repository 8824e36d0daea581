// The family's forms at other programs, for the registry.
#pragma once

#include "titan/model/exchange.h"

namespace titan {

const ModelExchange& llama_exchange();

}  // namespace titan
