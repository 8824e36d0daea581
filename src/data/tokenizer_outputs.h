// Whether what `tokenizer train` is to write can be written, judged before hours of learning. Private to data.
#pragma once

#include "titan/data/tokenizer_tools.h"

namespace titan {

/// Throws Error(storage) where an output cannot be made, Error(bad_config) where one is there already (unless it may be
/// overwritten) or the two forms would fall on each other. Looks at no text.
void check_outputs(const TokenizerTraining& training);

/// Throws Error(bad_config) where an output falls on, or into, the corpus.
void check_outputs_against_corpus(const TokenizerTraining& training);

}  // namespace titan
