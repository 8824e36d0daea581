// Parses JSON from outside whose order of keys matters.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace titan {

/// Like parse_json<nlohmann::ordered_json>, in time that is linear in the text: nlohmann's own parser compares each key
/// with all keys before it. Of equal keys the last value counts, at the place of the first. Throws nlohmann's
/// exceptions.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

}  // namespace titan
