#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "titan/base/error.h"

namespace titan {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int reason) {
  throw Error(ExitCode::storage,
              fmt::format("cannot write {}: {}. See to the disk and give the same command again: it goes on where it "
                          "stopped.",
                          path.string(), std::strerror(reason)));
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, int64_t keep) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path, errno);
  if (::ftruncate(descriptor_, keep) != 0 || ::lseek(descriptor_, keep, SEEK_SET) < 0) {
    const int reason = errno;
    ::close(descriptor_);
    fail(path, reason);
  }
}

OutputFile::~OutputFile() { ::close(descriptor_); }

void OutputFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(descriptor_, next, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path_, errno);
    next += done;
    size -= static_cast<size_t>(done);
  }
}

void OutputFile::sync() {
  if (::fdatasync(descriptor_) != 0) fail(path_, errno);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, errno);
  const std::filesystem::path folder = to.has_parent_path() ? to.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, errno);
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) fail(folder, errno);
}

}  // namespace titan
