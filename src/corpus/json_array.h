// Reads a file that is one JSON array element by element, without holding the file in memory. Private to corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "file_reader.h"

namespace titan {

/// Finds the end of one JSON value in text that arrives in pieces. Looks at brackets and strings only.
class JsonValueEnd {
 public:
  /// The number of bytes of `more`, which follows the text of earlier calls, up to the end of the value; nothing if the
  /// value does not end in it.
  std::optional<size_t> find(std::string_view more);

 private:
  int64_t depth_ = 0;
  bool began_ = false, is_string_ = false, is_escaped_ = false;
};

/// Whether the first character of the file, except for white space, is "[". Does not move the file.
bool begins_with_array(BufferedFile& file);

/// Skips the "[" that begins the file; returns the line feeds before it.
int64_t enter_array(BufferedFile& file);

/// The next element of the array; the file is at its beginning or after an earlier element.
struct ArrayElement {
  enum class State { element, end, too_long };
  State state = State::end;
  std::string bytes;   ///< of an element that is not too long
  int64_t offset = 0;  ///< where it begins
  int64_t lines = 0;   ///< line feeds before it
  std::string
      problem;  ///< of the array, as the end of a sentence; then `state` is `element`, and the file is at its end
};

/// Leaves the file after the element and the comma that follows it. `lines_after`: line feeds from the beginning of the
/// element to there.
ArrayElement read_element(BufferedFile& file, size_t longest, int64_t& lines_after);

}  // namespace titan
