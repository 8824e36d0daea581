#include "titan/data/buffered_file.h"

#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

constexpr size_t kReadAhead = size_t{256} << 10;

}  // namespace

BufferedFile::BufferedFile(const std::filesystem::path& path, int64_t offset)
    : reader_(open_reader(path)), offset_(offset) {
  if (offset > 0) reader_->skip(offset);
}

std::string_view BufferedFile::peek(size_t wanted) {
  if (unread().size() >= wanted || at_end_) return unread();
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t filled = buffer_.size();
  buffer_.resize(std::max(wanted, filled + kReadAhead));
  const size_t got = reader_->read(buffer_.data() + filled, buffer_.size() - filled);
  at_end_ = filled + got < buffer_.size();
  buffer_.resize(filled + got);
  return unread();
}

std::optional<std::string_view> BufferedFile::peek_line(size_t longest) {
  size_t searched = 0;
  while (true) {
    const std::string_view bytes = unread();
    const size_t end = bytes.find('\n', searched);
    if (end != bytes.npos && end < longest) return bytes.substr(0, end + 1);
    if (std::min(end, bytes.size()) >= longest) return std::nullopt;
    if (at_end_) return bytes;
    searched = bytes.size();
    peek(std::min(std::max(kReadAhead, searched * 2), longest + kReadAhead));
  }
}

void BufferedFile::consume(size_t bytes) {
  TITAN_CHECK(bytes <= unread().size(), bytes, unread().size());
  begin_ += bytes;
  offset_ += static_cast<int64_t>(bytes);
}

void BufferedFile::skip_line() {
  while (true) {
    const std::string_view bytes = peek(1);
    const size_t end = bytes.find('\n');
    consume(end == bytes.npos ? bytes.size() : end + 1);
    if (end != bytes.npos || bytes.empty()) return;
  }
}

}  // namespace titan
