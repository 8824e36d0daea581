// Text from outside (keys, file names, messages of other ranks, documents) as it may reach a terminal or a log: control
// characters of both blocks, line and paragraph separators, marks that change the direction of a line, and bytes that
// are no UTF-8 become escapes such as \x1b and \u202e. Log, the printing of errors and std::cerr apply it; nobody else
// needs to.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <string_view>

namespace titan {

/// Whether a character moves the cursor, colours, or turns what follows it.
bool disturbs_a_line(char32_t character);

/// One line: line ends and tabs are escaped too (\n, \t).
std::string printable(std::string_view text);

/// Lines stay lines. Those after the first are indented, so that none passes for a message of its own.
std::string printable_lines(std::string_view text);

/// As long as it lives, what is written to `stream` is printable; line ends and tabs stay.
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
