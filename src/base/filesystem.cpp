#include "titan/base/filesystem.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace titan {
namespace {

[[noreturn]] void fail(ExitCode code, std::string_view what, const std::filesystem::path& path, int reason) {
  throw Error(code, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(reason)));
}

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

/// Writes all of `bytes`, over short writes and interruptions; returns 0 or the error number.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void sync_folder(const std::filesystem::path& folder) {
  Descriptor directory{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.value < 0 || ::fsync(directory.value) != 0) fail(ExitCode::storage, "sync", folder, errno);
}

void put_in_place(const std::filesystem::path& path, std::string_view bytes, bool sync) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    // Renaming over a device (/dev/null, a pipe) would put a file in its place for every program of the machine. Who
    // does not wait for the disk does not wait for a pipe's reader either.
    Descriptor place{::open(path.c_str(), O_WRONLY | O_CLOEXEC | (sync ? 0 : O_NONBLOCK))};
    if (place.value < 0) fail(ExitCode::storage, "write", path, errno);
    if (int reason = write_all(place.value, bytes)) fail(ExitCode::storage, "write", path, reason);
    return;
  }
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  try {
    Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.value < 0) fail(ExitCode::storage, "write", path, errno);
    if (int reason = write_all(file.value, bytes)) fail(ExitCode::storage, "write", path, reason);
    if (sync && ::fdatasync(file.value) != 0) fail(ExitCode::storage, "write", path, errno);
    if (::close(std::exchange(file.value, -1)) != 0) fail(ExitCode::storage, "write", path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail(ExitCode::storage, "write", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (sync) sync_folder(path.parent_path());
}

}  // namespace

std::string read_file(const std::filesystem::path& path, ExitCode code) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) fail(code, "read", path, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail(code, "read", path, errno);
  if (S_ISDIR(status.st_mode)) fail(code, "read", path, EISDIR);
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t filled = 0;
  for (;;) {
    if (filled == bytes.size()) bytes.resize(bytes.size() + 4096);
    ssize_t got = ::read(file.value, bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(code, "read", path, errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/true);
}

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/false);
}

void make_folders(const std::filesystem::path& path) {
  std::error_code reason;
  std::filesystem::create_directories(path, reason);
  if (reason) fail(ExitCode::storage, "make the folder", path, reason.value());
}

AppendFile::AppendFile(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) last_error_ = fmt::format("cannot open {}: {}", path.string(), std::strerror(errno));
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool AppendFile::append_line(std::string_view line) {
  if (descriptor_ < 0) return false;
  std::string bytes(line);
  bytes += '\n';
  int reason = write_all(descriptor_, bytes);
  if (reason != 0) last_error_ = std::strerror(reason);
  return reason == 0;
}

}  // namespace titan
