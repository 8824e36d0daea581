// One line of a .jsonl file → its text, or its ids. Pure functions, so that several threads can read records side by
// side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

class Tokenizer;

struct RecordText {
  std::optional<std::string> text;  ///< valid UTF-8; nothing when the record is bad
  std::string problem;              ///< what is wrong with a bad one, as the end of a sentence about it
  int64_t invalid_utf8 = 0;         ///< malformed sequences replaced by U+FFFD
};

/// The text under the key `field` of the JSON object in `line`; of several, the last. No value but that one is kept,
/// however large or deep the record.
RecordText read_record(std::string_view line, const std::string& field);

/// What is wrong with a line that is no JSON, with the reason where it can be seen.
std::string describe_no_json(std::string_view line);

/// Appends the ids in the list under the key `field`, as a document of `vocabulary`: with its begin- and end-of-text
/// ids before and after where they are not there already; of several lists, the last. Malformed text in other fields is
/// no matter. Returns what is wrong with a bad record, for which nothing is appended; nothing for a good one.
std::string read_ids(std::string_view line, const std::string& field, const Tokenizer& vocabulary,
                     std::vector<int32_t>& ids);

}  // namespace titan
