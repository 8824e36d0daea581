// Half surrogate pairs in JSON text. Grammatically \ud83d alone is an escape like any other, and corpora that were cut
// in the middle of a character hold such; but it is no character, and the parser refuses the whole record for it.
#pragma once

#include <cstdint>
#include <string>

namespace titan {

/// Replaces every \u escape of a surrogate that has no partner by \ufffd, in place; returns how many there were. Python
/// reads such a record the same way once the text is encoded with errors="replace".
int64_t repair_surrogate_escapes(std::string& json);

}  // namespace titan
