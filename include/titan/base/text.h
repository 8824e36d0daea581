// Small pure functions on text: spelling suggestions, human-readable numbers, splitting and joining. Used for messages
// to the user and for user input. Letters are ASCII only; UTF-8 is in text/utf8.h.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`: the optimal string alignment distance.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidates nearest to `word`, ignoring case, best first, at most `limit`; none farther than about half its
/// length.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit = 3);

/// 1234567 → "1,234,567".
std::string with_thousands(int64_t value);

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Bytes with a binary unit: 1536 → "1.50 KiB".
std::string human_bytes(double bytes);

/// Counts with a decimal unit: 8030261248 → "8.03 B".
std::string human_count(double count);

/// Seconds as "3h41m", "12m05s", "4.2s".
std::string human_duration(double seconds);

std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string trim(std::string_view text);
std::string to_lower(std::string_view text);

// Escapes external text (keys, file names, messages of other ranks, documents) for a terminal or a log: control
// characters (C0 and C1), line and paragraph separators, bidirectional marks and invalid UTF-8 become escapes such as
// \x1b and \u202e. Log, error printing and std::cerr apply it; no other code needs to.

/// Whether a character moves the cursor, changes colours or reverses text direction.
bool disturbs_a_line(char32_t character);

/// One line: line ends and tabs are escaped too (\n, \t).
std::string printable(std::string_view text);

/// Keeps line breaks. Indents lines after the first, so that none looks like a separate message.
std::string printable_lines(std::string_view text);

/// While it exists, text written to `stream` is escaped; line ends and tabs are kept.
class PrintableStream {
 public:
  explicit PrintableStream(std::ostream& stream);
  ~PrintableStream();
  PrintableStream(const PrintableStream&) = delete;
  PrintableStream& operator=(const PrintableStream&) = delete;

 private:
  std::ostream& stream_;
  std::unique_ptr<std::streambuf> buffer_;
  std::streambuf* before_;
};

}  // namespace titan
