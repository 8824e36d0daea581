// What shell completion offers beside the schema.
#pragma once

#include "titan/config/completion.h"
#include "titan/config/schema.h"

namespace titan {

/// Subcommands, the words after them and their own options, the models' flavors.
CompletionWords completion_words(const Schema& schema);

}  // namespace titan
