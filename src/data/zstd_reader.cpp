// Zstandard files (RFC 8878): frames one after the other, skippable ones included.
#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <vector>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
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
      if (at_end_ && in_frame_ && output.pos == before) fail_truncated();
    }
    return output.pos;
  }

 private:
  void refill() {
    input_ = {buffer_.data(), file_->read(buffer_.data(), buffer_.size()), 0};
    if (input_.size > 0) return;
    at_end_ = true;
    if (file_->offset() == 0) fail_truncated();  // an empty file holds no frame
  }

  std::string place() const {
    return fmt::format("at byte {} of the file, {} bytes unpacked",
                       with_thousands(file_->offset() - static_cast<int64_t>(input_.size - input_.pos)),
                       with_thousands(unpacked_));
  }
  [[noreturn]] void fail_truncated() const {
    fail_reading(file_->path(),
                 fmt::format("the zstd data are cut off ({}). Get the whole file again, or remove it.", place()));
  }
  [[noreturn]] void fail_damaged(size_t code) const {
    if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge) {
      fail_reading(file_->path(),
                   "it was packed with a window of more than 128 MiB (zstd --long or --ultra). Pack it "
                   "again without that option.");
    }
    fail_reading(file_->path(), fmt::format("these are no sound zstd data: {} ({}). Get the file again, or remove it.",
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
