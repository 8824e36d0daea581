#include "titan/data/byte_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {

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

}  // namespace

void ByteReader::skip(int64_t bytes) {
  std::vector<char> dropped(size_t{256} << 10);
  while (bytes > 0) {
    const size_t got = read(dropped.data(), std::min(dropped.size(), static_cast<size_t>(bytes)));
    if (got == 0) return;
    bytes -= static_cast<int64_t>(got);
  }
}

FileReader::FileReader(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path, errno);
  struct stat facts {};
  if (::fstat(descriptor_, &facts) == 0) size_ = facts.st_size;
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

}  // namespace titan
