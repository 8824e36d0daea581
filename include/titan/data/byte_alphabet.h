// GPT-2's way to write any bytes as printable text: each byte is one character, most of ASCII stands for itself.
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace titan {

/// The characters of `bytes`: a space is "Ġ", a line feed "Ċ".
std::string to_byte_alphabet(std::string_view bytes);

/// The bytes that the characters stand for; nothing when one of them stands for none. `text` is valid UTF-8.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace titan
