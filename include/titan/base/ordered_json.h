// Parses JSON from outside whose order of keys matters, or that may have very many keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace titan {

/// Like parse_json<nlohmann::ordered_json>, in time that is linear in the text: nlohmann's own parser compares each key
/// with all keys before it, and with a callback it visits all members of an object after each of them. If an object
/// has a key twice, the last value counts, at the place of the first; `twice`, if given, becomes a key that the
/// outermost object has twice. Throws nlohmann's exceptions.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string* twice = nullptr);

}  // namespace titan
