// gzip files (RFC 1952): members one after the other, as `cat` joins them.
#include <fmt/format.h>
#include <zlib.h>

#include <vector>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr size_t kInput = size_t{128} << 10;

class GzipReader : public ByteReader {
 public:
  explicit GzipReader(std::unique_ptr<FileReader> file) : file_(std::move(file)), input_(kInput) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
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
  /// Whether there is something to unpack; has input ready then. Zeros after the last member are padding.
  bool has_member() {
    while (true) {
      if (stream_.avail_in == 0 && !refill()) {
        if (in_member_ || unpacked_members_ == 0) fail_truncated();
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
  [[noreturn]] void fail_truncated() const {
    fail_reading(file_->path(),
                 fmt::format("the gzip data are cut off ({}). Get the whole file again, or remove it.", place()));
  }
  [[noreturn]] void fail_damaged(const std::string& what) const {
    fail_reading(file_->path(), fmt::format("these are no sound gzip data: {} ({}). Get the file again, or remove it.",
                                            what, place()));
  }

  std::unique_ptr<FileReader> file_;
  std::vector<char> input_;
  z_stream stream_{};
  bool in_member_ = false;
  int64_t unpacked_members_ = 0;
  int64_t unpacked_ = 0;  // bytes
};

}  // namespace

std::unique_ptr<ByteReader> make_gzip_reader(std::unique_ptr<FileReader> file) {
  return std::make_unique<GzipReader>(std::move(file));
}

}  // namespace titan
