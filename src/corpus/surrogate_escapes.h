// Unpaired surrogates in JSON text. An escape such as \ud83d alone is valid JSON grammar, and corpora that were cut in
// the middle of a character contain it; but it is not a character, and the parser rejects the whole record.
#pragma once

#include <cstdint>
#include <string>

namespace titan {

/// Replaces every \u escape of an unpaired surrogate by \ufffd, in place; returns their number. Equals Python's result
/// after encoding the text with errors="replace".
int64_t repair_surrogate_escapes(std::string& json);

}  // namespace titan
