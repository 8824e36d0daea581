#include "titan/base/console_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "titan/base/error.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the first line without room waits. A reader that is alive but slow makes room within it.
constexpr int kPatienceMilliseconds = 1000;

thread_local std::array<bool, STDERR_FILENO + 1> left_out_here{};  // by descriptor

/// Text that other code has left in stdio's buffer comes first.
void flush_standard(int descriptor) {
  std::FILE* const file = descriptor == STDOUT_FILENO ? stdout : descriptor == STDERR_FILENO ? stderr : nullptr;
  if (file && ::__fpending(file) > 0) std::fflush(file);
}

bool wait_for_room(int descriptor, int milliseconds) {
  pollfd entry{descriptor, POLLOUT, 0};
  return ::poll(&entry, 1, milliseconds) > 0;
}

/// Passes lines on; an incomplete one at a flush. Locked, since several threads may write to std::cerr at once.
class LineBuffer : public std::streambuf {
 protected:
  int_type overflow(int_type byte) override {
    if (traits_type::eq_int_type(byte, traits_type::eof())) return traits_type::not_eof(byte);
    const std::lock_guard<std::mutex> lock(mutex_);
    line_ += traits_type::to_char_type(byte);
    if (line_.back() == '\n') pass_on();
    return byte;
  }
  int sync() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    pass_on();
    return 0;
  }

 private:
  void pass_on() {
    if (!line_.empty()) standard_error().write(std::exchange(line_, {}));
  }

  std::mutex mutex_;
  std::string line_;
};

}  // namespace

ConsoleWriter::ConsoleWriter(int descriptor) : descriptor_(descriptor) {
  TITAN_CHECK(descriptor >= 0 && descriptor <= STDERR_FILENO, descriptor);
}

ConsoleWriter::~ConsoleWriter() {
  if (open_ >= 0) ::close(open_);
}

// O_NONBLOCK belongs to an open file, which this process may share with its shell and with other ranks. So it is set on
// a file of its own, and never on the descriptor.
void ConsoleWriter::follow() {
  struct stat now {};
  if (::fstat(descriptor_, &now) != 0) {
    broken_ = errno;
    is_known_ = false;
    return;
  }
  if (is_known_ && now.st_dev == device_ && now.st_ino == file_) return;
  if (open_ >= 0) ::close(open_);
  open_ = -1;
  device_ = now.st_dev, file_ = now.st_ino;
  is_known_ = true, is_socket_ = S_ISSOCK(now.st_mode), must_poll_ = false;
  stalled_ = false, broken_ = 0;
  rest_.clear();
  if (!S_ISFIFO(now.st_mode) && ::isatty(descriptor_) == 0) return;
  open_ = ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  // Another user's terminal cannot be opened, so the descriptor blocks; poll() before each write avoids that, unless
  // another writer takes the room in between.
  must_poll_ = open_ < 0;
}

bool ConsoleWriter::write_part(std::string_view& text) {
  const int to = open_ >= 0 ? open_ : descriptor_;
  if (must_poll_ && !wait_for_room(to, 0)) return false;
  // With room for a page the kernel takes a whole write of PIPE_BUF bytes without blocking.
  const size_t part = open_ >= 0 || must_poll_ ? std::min<size_t>(text.size(), PIPE_BUF) : text.size();
  const ssize_t written =
      is_socket_ ? ::send(to, text.data(), part, MSG_DONTWAIT | MSG_NOSIGNAL) : ::write(to, text.data(), part);
  if (written >= 0) {
    text.remove_prefix(static_cast<size_t>(written));
    return written > 0 || text.empty();
  }
  if (errno == EINTR) return true;
  if (errno != EAGAIN) broken_ = errno;
  return false;
}

bool ConsoleWriter::write_all(std::string_view text, int patience_ms) {
  const size_t size = text.size();
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(patience_ms);
  while (!text.empty()) {
    if (write_part(text)) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
    if (broken_ == 0 && left > 0 && wait_for_room(open_ >= 0 ? open_ : descriptor_, static_cast<int>(left))) continue;
    stalled_ = broken_ == 0;
    if (text.size() == size) return false;
    rest_ = text;  // half a line has been written: anything else in between would mix with it
    return broken_ == 0;
  }
  return true;
}

bool ConsoleWriter::write_rest() {
  if (rest_.empty()) return true;
  const std::string rest = std::exchange(rest_, {});
  if (write_all(rest, 0)) return rest_.empty();
  rest_ = rest;
  return false;
}

bool ConsoleWriter::write(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  follow();
  if (broken_ == 0) flush_standard(descriptor_);
  const int patience = std::exchange(stalled_, false) ? 0 : kPatienceMilliseconds;
  const bool may_write = broken_ == 0 && write_rest();
  // With the line, which may not fit although the notice alone would.
  const std::string after_gap =
      gap_ > 0 ? fmt::format("titan_train: lines left out here, because the reader had stopped: {}\n{}", gap_, line)
               : "";
  if (may_write && write_all(gap_ > 0 ? after_gap : line, patience)) {
    gap_ = 0;
    return true;
  }
  stalled_ = broken_ == 0;
  ++left_out_, ++gap_;
  left_out_here[static_cast<size_t>(descriptor_)] = true;
  return false;
}

size_t ConsoleWriter::write_some(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  follow();
  const size_t size = text.size();
  while (!text.empty() && broken_ == 0 && write_part(text)) continue;
  stalled_ = broken_ == 0 && !text.empty();
  return broken_ == 0 ? size - text.size() : size;
}

std::string ConsoleWriter::problem() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (broken_ != 0) return std::strerror(broken_);
  return stalled_ ? "its reader stopped reading" : "";
}

bool ConsoleWriter::is_broken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return broken_ != 0;
}

bool ConsoleWriter::has_room() {
  const std::lock_guard<std::mutex> lock(mutex_);
  follow();
  if (broken_ != 0) return false;
  return (open_ < 0 && !must_poll_ && !is_socket_) || wait_for_room(open_ >= 0 ? open_ : descriptor_, 0);
}

int64_t ConsoleWriter::left_out() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_out_;
}

bool ConsoleWriter::take_left_out() const {
  return std::exchange(left_out_here[static_cast<size_t>(descriptor_)], false);
}

// Never destroyed: threads may write a last line while the process exits.
ConsoleWriter& standard_output() {
  static ConsoleWriter& writer = *new ConsoleWriter(STDOUT_FILENO);
  return writer;
}

ConsoleWriter& standard_error() {
  static ConsoleWriter& writer = *new ConsoleWriter(STDERR_FILENO);
  return writer;
}

// By default std::cerr flushes after each <<, which would make lines of its parts.
ErrorStream::ErrorStream()
    : buffer_(std::make_unique<LineBuffer>()),
      before_(std::cerr.rdbuf(buffer_.get())),
      flags_before_(std::cerr.flags()) {
  std::cerr.unsetf(std::ios::unitbuf);
}

ErrorStream::~ErrorStream() {
  std::cerr.flush();
  std::cerr.rdbuf(before_);
  std::cerr.flags(flags_before_);
}

}  // namespace titan
