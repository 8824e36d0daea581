#include "titan/base/filesystem.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "titan/base/text.h"

namespace titan {
namespace {

/// How long the other end of a pipe may do nothing: without a limit a forgotten writer would block the start for ever.
constexpr int kPipeLimitMilliseconds = 3000;

/// Reading a character device may never end (/dev/zero) and would fill the memory.
constexpr size_t kMostOfADevice = size_t{64} << 20;

constexpr const char* kOwnFiles = "and the program writes only regular files there; remove it";

/// What is neither a regular file nor a folder, for which opening has a word.
std::string other_kind(mode_t mode) {
  if (S_ISREG(mode) || S_ISDIR(mode)) return {};
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a named pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

[[noreturn]] void fail(ExitCode code, std::string_view what, const std::filesystem::path& path, int reason) {
  throw Error(code, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(reason)));
}

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

/// Writes all of `bytes`, retrying after short writes and EINTR; returns 0 or the error number. `milliseconds`: how
/// long to wait for a full pipe to take more.
int write_all(int descriptor, std::string_view bytes, int milliseconds = 0) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{descriptor, POLLOUT, 0};
      if (::poll(&ready, 1, milliseconds) > 0) continue;
      return milliseconds > 0 ? ETIMEDOUT : EAGAIN;
    }
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

/// How long to wait for a pipe's next bytes while a program has it open for writing. What a shell hands over, on
/// standard input or as <(command), is waited for until that command ends.
int patience_for(const std::filesystem::path& path) {
  const std::string name = path.string();
  const bool from_shell = name == "/dev/stdin" || name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
  return from_shell ? -1 : kPipeLimitMilliseconds;
}

/// Whether data or end of file arrives within `milliseconds`; negative: no timeout.
bool becomes_readable(int descriptor, int milliseconds) {
  pollfd ready{descriptor, POLLIN, 0};
  return ::poll(&ready, 1, milliseconds) != 0;
}

void sync_folder(const std::filesystem::path& folder) {
  Descriptor directory{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.value < 0 || ::fsync(directory.value) != 0) fail(ExitCode::storage, "sync", folder, errno);
}

/// One of the program's own files for appending or locking, without waiting for anything; -1 and a reason if something
/// else is there.
int open_own_file(const std::filesystem::path& path, int flags, std::string& reason) {
  reason = own_file_obstacle(path);
  if (!reason.empty()) return -1;
  const int descriptor = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  struct stat status {};
  const bool fits = descriptor >= 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  if (fits) return descriptor;
  reason = descriptor < 0 ? std::strerror(errno) : fmt::format("it is {}, {}", other_kind(status.st_mode), kOwnFiles);
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

void put_in_place(const std::filesystem::path& path, std::string_view bytes, bool sync, bool own) {
  const std::string obstacle = own ? own_file_obstacle(path) : std::string();
  if (!obstacle.empty()) throw Error(ExitCode::storage, fmt::format("cannot write {}: {}", path.string(), obstacle));
  struct stat status {};
  if (!own && ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    // Renaming over a device or pipe (/dev/null) would replace it with a regular file for every program of the machine.
    // Without O_NONBLOCK, opening a pipe would wait for its reader.
    Descriptor place{::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK)};
    if (place.value < 0) fail(ExitCode::storage, "write", path, errno);
    const int patience = sync ? kPipeLimitMilliseconds : 0;
    if (int reason = write_all(place.value, bytes, patience)) fail(ExitCode::storage, "write", path, reason);
    return;
  }
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  try {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    Descriptor file{::open(temporary.c_str(), flags, 0644)};
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

std::string read_file(const std::filesystem::path& path, ExitCode code, size_t most) {
  // Without O_NONBLOCK, opening a named pipe that has no writer would block forever.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) fail(code, "read", path, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail(code, "read", path, errno);
  if (S_ISDIR(status.st_mode)) fail(code, "read", path, EISDIR);
  if (S_ISCHR(status.st_mode)) most = std::min(most, kMostOfADevice);
  const auto size = static_cast<size_t>(status.st_size);
  std::string bytes(size > most ? 0 : size, '\0');
  size_t filled = 0;
  bool awaits_writer = S_ISFIFO(status.st_mode);
  for (;;) {
    if (filled > most || size > most) {
      throw Error(code, fmt::format("cannot read {}: it has more than {}", path.string(),
                                    human_bytes(static_cast<double>(most))));
    }
    if (filled == bytes.size()) bytes.resize(bytes.size() + 4096);
    ssize_t got = ::read(file.value, bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (becomes_readable(file.value, patience_for(path))) continue;
      throw Error(code, fmt::format("cannot read {}: the program at the other end has written nothing for {} s",
                                    path.string(), kPipeLimitMilliseconds / 1000));
    }
    if (got < 0) fail(code, "read", path, errno);
    if (got == 0 && filled == 0 && std::exchange(awaits_writer, false)) {
      if (becomes_readable(file.value, kPipeLimitMilliseconds)) continue;
      throw Error(code, fmt::format("cannot read {}: no program opened this pipe for writing within {} s",
                                    path.string(), kPipeLimitMilliseconds / 1000));
    }
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

std::string own_file_obstacle(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};  // opening it fails too, and says why
  const std::string kind = other_kind(status.st_mode);
  return kind.empty() ? kind : fmt::format("it is {}, {}", kind, kOwnFiles);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/true, /*own=*/false);
}

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/false, /*own=*/false);
}

void write_own_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/true, /*own=*/true);
}

void replace_own_file(const std::filesystem::path& path, std::string_view bytes) {
  put_in_place(path, bytes, /*sync=*/false, /*own=*/true);
}

void make_folders(const std::filesystem::path& path) {
  std::error_code reason;
  std::filesystem::create_directories(path, reason);
  if (reason) fail(ExitCode::storage, "make the folder", path, reason.value());
}

bool is_file_at(int descriptor, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  if (::stat(path.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return ::fstat(descriptor, &open) != 0 || (open.st_dev == named.st_dev && open.st_ino == named.st_ino);
}

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) { descriptor_ = open(); }

int AppendFile::open() {
  std::string reason;
  const int descriptor = open_own_file(path_, O_RDWR | O_APPEND, reason);
  if (descriptor < 0) last_error_ = fmt::format("cannot open {}: {}", path_.string(), reason);
  return descriptor;
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool AppendFile::append_line(std::string_view line) {
  if (descriptor_ < 0) return false;
  if (!is_file_at(descriptor_, path_)) {
    std::error_code ignored;  // if it fails, so does open(), which says why
    std::filesystem::create_directories(path_.parent_path(), ignored);
    const int anew = open();
    if (anew < 0) return false;
    ::close(std::exchange(descriptor_, anew));
  }
  // A line that a full disk or a crash cut off stays a line of its own.
  const off_t size = ::lseek(descriptor_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(descriptor_, &last, 1, size - 1) != 1) last = '\n';
  const int reason = write_all(descriptor_, fmt::format("{}{}\n", last == '\n' ? "" : "\n", line));
  if (reason == 0) return true;
  last_error_ = std::strerror(reason);
  [[maybe_unused]] const int kept = size < 0 ? -1 : ::ftruncate(descriptor_, size);  // no half of the line
  return false;
}

namespace {

std::string content_of(int descriptor) {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), 0);
  return trim(std::string_view(bytes.data(), count > 0 ? static_cast<size_t>(count) : 0));
}

}  // namespace

// flock, not fcntl: flock belongs to the open file, so two holders in one process also exclude each other. A child
// process loses the lock at exec.
LockFile::LockFile(const std::filesystem::path& path, std::string_view holder)
    : path_(path), descriptor_(open_own_file(path, O_RDWR, detail_)) {
  if (descriptor_ < 0) return;
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    state_ = State::held;
    // Its result is ignored: on a full disk the lock is still held, and only the holder's name is missing.
    const std::string line = std::string(holder) + "\n";
    if (::ftruncate(descriptor_, 0) == 0) {
      [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, line.data(), line.size(), 0);
    }
    return;
  }
  if (errno == EWOULDBLOCK) {
    state_ = State::taken;
    detail_ = content_of(descriptor_);
    return;
  }
  detail_ = std::strerror(errno);
}

LockFile::~LockFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool LockFile::is_in_place() const { return descriptor_ >= 0 && is_file_at(descriptor_, path_); }

}  // namespace titan
