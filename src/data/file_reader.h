// A file as it lies on disk, and what the readers of packed files are built on. Private to data.
#pragma once

#include <string>

#include "titan/data/byte_reader.h"

namespace titan {

/// Throws Error(bad_data): what is wrong with `path`, and what to do.
[[noreturn]] void fail_reading(const std::filesystem::path& path, const std::string& what);

class FileReader : public ByteReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader() override;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  size_t read(char* into, size_t size) override;
  void skip(int64_t bytes) override;

  const std::filesystem::path& path() const { return path_; }
  int64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;  // when it was opened
  int64_t offset_ = 0;
};

std::unique_ptr<ByteReader> make_gzip_reader(std::unique_ptr<FileReader> file);
std::unique_ptr<ByteReader> make_zstd_reader(std::unique_ptr<FileReader> file);

}  // namespace titan
