// One line of a .jsonl file → its text. A pure function, so that several threads can read records side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

struct RecordText {
  std::optional<std::string> text;  ///< valid UTF-8; nothing when the record is bad
  std::string problem;              ///< what is wrong with a bad one, as the end of a sentence about it
  int64_t invalid_utf8 = 0;         ///< malformed sequences replaced by U+FFFD
};

/// The text under the key `field` of the JSON object in `line`; of several, the last. No value but that one is kept,
/// however large or deep the record.
RecordText read_record(std::string_view line, const std::string& field);

}  // namespace titan
