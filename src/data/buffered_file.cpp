#include "titan/data/buffered_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "titan/base/error.h"

namespace titan {
namespace {

constexpr size_t kReadAhead = size_t{256} << 10;

[[noreturn]] void fail(const std::filesystem::path& path, int reason) {
  throw Error(ExitCode::bad_data, fmt::format("cannot read {}: {}. Check the file and its permissions.", path.string(),
                                              std::strerror(reason)));
}

}  // namespace

BufferedFile::BufferedFile(const std::filesystem::path& path, int64_t offset) : path_(path), offset_(offset) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path, errno);
  if (offset > 0 && ::lseek(descriptor_, offset, SEEK_SET) < 0) {
    int reason = errno;
    ::close(descriptor_);
    fail(path, reason);
  }
}

BufferedFile::~BufferedFile() { ::close(descriptor_); }

std::string_view BufferedFile::peek(size_t wanted) {
  if (unread().size() >= wanted || at_end_) return unread();
  buffer_.erase(0, begin_);
  begin_ = 0;
  size_t filled = buffer_.size();
  buffer_.resize(std::max(wanted, filled + kReadAhead));
  while (filled < buffer_.size()) {
    ssize_t got = ::read(descriptor_, buffer_.data() + filled, buffer_.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, errno);
    if (got == 0) {
      at_end_ = true;
      break;
    }
    filled += static_cast<size_t>(got);
  }
  buffer_.resize(filled);
  return unread();
}

std::string_view BufferedFile::peek_line() {
  size_t searched = 0;
  while (true) {
    std::string_view bytes = unread();
    if (size_t end = bytes.find('\n', searched); end != bytes.npos) return bytes.substr(0, end + 1);
    if (at_end_) return bytes;
    searched = bytes.size();
    peek(std::max(kReadAhead, searched * 2));
  }
}

void BufferedFile::consume(size_t bytes) {
  TITAN_CHECK(bytes <= unread().size(), bytes, unread().size());
  begin_ += bytes;
  offset_ += static_cast<int64_t>(bytes);
}

}  // namespace titan
