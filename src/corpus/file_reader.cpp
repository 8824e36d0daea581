#include "file_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"

namespace titan {
namespace {

// Enough that system calls are few beside the bytes, and little enough for the cache. Any value between a page and some
// megabytes works.
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

Packing packing_of(const std::filesystem::path& path) {
  const std::string extension = to_lower(path.extension().string());
  return extension == ".gz" ? Packing::gzip : extension == ".zst" ? Packing::zstd : Packing::none;
}

void fail_reading(const std::filesystem::path& path, const std::string& what) {
  throw Error(ExitCode::bad_data, fmt::format("cannot read {}: {}", path.string(), what));
}

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int reason) {
  fail_reading(path, fmt::format("{}. Check the file and its permissions.", std::strerror(reason)));
}

[[noreturn]] void fail_truncated(const char* packing, const std::filesystem::path& path, const std::string& place) {
  fail_reading(path,
               fmt::format("the {} data are cut off ({}). Get the whole file again, or remove it.", packing, place));
}

}  // namespace

void ByteReader::skip(int64_t bytes) {
  // As arbitrary as kReadAhead.
  std::vector<char> dropped(size_t{256} << 10);
  while (bytes > 0) {
    const size_t got = read(dropped.data(), std::min(dropped.size(), static_cast<size_t>(bytes)));
    if (got == 0) return;
    bytes -= static_cast<int64_t>(got);
  }
}

FileReader::FileReader(const std::filesystem::path& path) : path_(path) {
  descriptor_ =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe without a writer would block for ever
  if (descriptor_ < 0) fail(path, errno);
  struct stat facts {};
  if (::fstat(descriptor_, &facts) == 0) size_ = facts.st_size;
  if (S_ISREG(facts.st_mode)) return;
  ::close(descriptor_);
  fail_reading(path, "this is not a file but a pipe, a device or a folder. Name a file.");
}

FileReader::~FileReader() { ::close(descriptor_); }

size_t FileReader::read(char* into, size_t size) {
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got = ::read(descriptor_, into + filled, size - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    offset_ += got;
  }
  if (filled < size && offset_ < size_) {
    fail_reading(path_, fmt::format("the file shrank while it was read: it had {} bytes and now ends after {}. Leave "
                                    "the corpus alone while a run reads it; put the file back and start again.",
                                    with_thousands(size_), with_thousands(offset_)));
  }
  return filled;
}

void FileReader::skip(int64_t bytes) {
  if (::lseek(descriptor_, bytes, SEEK_CUR) < 0) fail(path_, errno);
  offset_ += bytes;
}

std::unique_ptr<ByteReader> open_reader(const std::filesystem::path& path) {
  auto file = std::make_unique<FileReader>(path);
  switch (packing_of(path)) {
    case Packing::gzip:
      return make_gzip_reader(std::move(file));
    case Packing::zstd:
      return make_zstd_reader(std::move(file));
    case Packing::none:
      break;
  }
  return file;
}

// gzip files (RFC 1952): a sequence of members, as `cat` concatenates them.

namespace {

// Compressed bytes that are read at once; as arbitrary as kReadAhead.
constexpr size_t kInput = size_t{128} << 10;

class GzipReader : public ByteReader {
 public:
  explicit GzipReader(std::unique_ptr<FileReader> file) : file_(std::move(file)), input_(kInput) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's flag for gzip; without it a gzip header is an error
    TITAN_CHECK(inflateInit2(&stream_, kGzipOnly) == Z_OK);
  }
  ~GzipReader() override { inflateEnd(&stream_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  size_t read(char* into, size_t size) override {
    size_t filled = 0;
    while (filled < size && has_member()) {
      stream_.next_out = reinterpret_cast<Bytef*>(into + filled);
      stream_.avail_out = static_cast<uInt>(std::min(size - filled, size_t{1} << 30));
      const uInt room = stream_.avail_out;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      filled += room - stream_.avail_out;
      unpacked_ += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        in_member_ = false;
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail_damaged(stream_.msg ? stream_.msg : "the data are damaged");
      }
    }
    return filled;
  }

 private:
  /// Whether there is more to decompress; input is then available. Zeros after the last member are padding.
  bool has_member() {
    while (true) {
      if (stream_.avail_in == 0 && !refill()) {
        if (in_member_ || unpacked_members_ == 0) fail_truncated("gzip", file_->path(), place());
        return false;
      }
      if (in_member_) return true;
      if (unpacked_members_ > 0 && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      inflateReset(&stream_);
      in_member_ = true;
      ++unpacked_members_;
      return true;
    }
  }

  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(file_->read(input_.data(), input_.size()));
    return stream_.avail_in > 0;
  }

  std::string place() const {
    return fmt::format("at byte {} of the file, {} bytes unpacked", with_thousands(file_->offset() - stream_.avail_in),
                       with_thousands(unpacked_));
  }
  [[noreturn]] void fail_damaged(const std::string& what) const {
    if (file_kind_at(file_->path()) != FileKind::gzip) {
      fail_reading(file_->path(),
                   "this is not valid gzip data, although its name says so. If it is text, take .gz off its name.");
    }
    fail_reading(file_->path(),
                 fmt::format("this is not valid gzip data: {} ({}). Get the file again, or remove it.", what, place()));
  }

  std::unique_ptr<FileReader> file_;
  std::vector<char> input_;
  z_stream stream_{};
  bool in_member_ = false;
  int64_t unpacked_members_ = 0;
  int64_t unpacked_ = 0;  // decompressed bytes
};

}  // namespace

std::unique_ptr<ByteReader> make_gzip_reader(std::unique_ptr<FileReader> file) {
  return std::make_unique<GzipReader>(std::move(file));
}

// Zstandard files (RFC 8878): a sequence of frames, including skippable ones.

namespace {

class ZstdReader : public ByteReader {
 public:
  explicit ZstdReader(std::unique_ptr<FileReader> file)
      : file_(std::move(file)), stream_(ZSTD_createDStream()), buffer_(ZSTD_DStreamInSize()) {
    if (!stream_) throw std::bad_alloc();
  }
  ~ZstdReader() override { ZSTD_freeDStream(stream_); }
  ZstdReader(const ZstdReader&) = delete;
  ZstdReader& operator=(const ZstdReader&) = delete;

  size_t read(char* into, size_t size) override {
    ZSTD_outBuffer output{into, size, 0};
    while (output.pos < size) {
      if (input_.pos == input_.size && !at_end_) refill();
      const size_t before = output.pos;
      if (at_end_ && !in_frame_) break;
      const size_t hint = ZSTD_decompressStream(stream_, &output, &input_);
      if (ZSTD_isError(hint)) fail_damaged(hint);
      unpacked_ += static_cast<int64_t>(output.pos - before);
      in_frame_ = hint != 0;
      if (at_end_ && in_frame_ && output.pos == before) fail_truncated("zstd", file_->path(), place());
    }
    return output.pos;
  }

 private:
  void refill() {
    input_ = {buffer_.data(), file_->read(buffer_.data(), buffer_.size()), 0};
    if (input_.size > 0) return;
    at_end_ = true;
    if (file_->offset() == 0) fail_truncated("zstd", file_->path(), place());  // an empty file has no frame
  }

  std::string place() const {
    return fmt::format("at byte {} of the file, {} bytes unpacked",
                       with_thousands(file_->offset() - static_cast<int64_t>(input_.size - input_.pos)),
                       with_thousands(unpacked_));
  }
  [[noreturn]] void fail_damaged(size_t code) const {
    if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge) {
      fail_reading(file_->path(),
                   "it was packed with a window of more than 128 MiB (zstd --long or --ultra). Pack it "
                   "again without that option.");
    }
    fail_reading(file_->path(), fmt::format("this is not valid zstd data: {} ({}). Get the file again, or remove it.",
                                            ZSTD_getErrorName(code), place()));
  }

  std::unique_ptr<FileReader> file_;
  ZSTD_DStream* stream_;
  std::vector<char> buffer_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool in_frame_ = false;
  bool at_end_ = false;
  int64_t unpacked_ = 0;
};

}  // namespace

std::unique_ptr<ByteReader> make_zstd_reader(std::unique_ptr<FileReader> file) {
  return std::make_unique<ZstdReader>(std::move(file));
}

}  // namespace titan
