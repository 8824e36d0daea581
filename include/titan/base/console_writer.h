// Lines to standard output and standard error that never block: a run must not wait for somebody who has stopped
// reading its log (a full pipe, a suspended pager, a paused terminal). Commands whose output is their result write to
// std::cout, which waits.
#pragma once

#include <cstdint>
#include <ios>
#include <memory>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

namespace titan {

/// Thread-safe. Follows a descriptor that is redirected while it exists.
class ConsoleWriter {
 public:
  explicit ConsoleWriter(int descriptor);
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  /// Writes `line`, with its newline, as a whole. False: it was left out, because its reader stopped or because the
  /// descriptor cannot be written. The first line for which there is no room waits a second for the reader; until there
  /// is room again the others do not. The next line after a gap follows a line that says how many are missing.
  bool write(std::string_view line);
  /// Writes as much of `text` as fits without waiting. → bytes; all of them if the descriptor cannot be written.
  size_t write_some(std::string_view text);

  /// Why lines are left out now ("Broken pipe", "its reader stopped reading"); empty: they are written.
  std::string problem() const;
  /// The descriptor cannot be written and never will.
  bool is_broken() const;
  /// True if a write would neither wait nor fail.
  bool has_room();
  /// Lines left out so far.
  int64_t left_out() const;
  /// Whether write() has left out a line of this thread since the last call.
  bool take_left_out() const;

 private:
  /// What the descriptor is now, opened again so that writing to a pipe or a terminal does not block.
  void follow();
  bool write_all(std::string_view text, int patience_ms);
  /// Writes what fits and removes it from `text`; false: nothing fits now, or the descriptor is broken.
  bool write_part(std::string_view& text);
  bool write_rest();

  const int descriptor_;
  mutable std::mutex mutex_;
  int open_ = -1;  // of this object; -1: the descriptor itself is written
  uint64_t device_ = 0, file_ = 0;
  bool is_known_ = false, is_socket_ = false, must_poll_ = false;
  bool stalled_ = false;
  int broken_ = 0;    // the error number; 0: not broken
  std::string rest_;  // of a line that was written in part
  int64_t left_out_ = 0, gap_ = 0;
};

/// The writers of this process: one for each descriptor, since all threads share it.
ConsoleWriter& standard_output();
ConsoleWriter& standard_error();

/// While it exists, text written to std::cerr goes through standard_error(), line by line.
class ErrorStream {
 public:
  ErrorStream();
  ~ErrorStream();
  ErrorStream(const ErrorStream&) = delete;
  ErrorStream& operator=(const ErrorStream&) = delete;

 private:
  std::unique_ptr<std::streambuf> buffer_;
  std::streambuf* before_;
  std::ios::fmtflags flags_before_;
};

}  // namespace titan
