#include "titan/base/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

std::string content_of(int descriptor) {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), 0);
  return trim(std::string_view(bytes.data(), count > 0 ? static_cast<size_t>(count) : 0));
}

}  // namespace

// flock, not fcntl: it belongs to the open file, so that two holders in one process exclude each other, too. The child
// of a fork does not keep it beyond exec.
LockFile::LockFile(const std::filesystem::path& path, std::string_view holder)
    : path_(path), descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    state_ = State::held;
    // On a full disk the lock holds all the same, and tells less to whoever finds it.
    const std::string line = std::string(holder) + "\n";
    if (::ftruncate(descriptor_, 0) == 0) {
      [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, line.data(), line.size(), 0);
    }
    return;
  }
  if (descriptor_ >= 0 && errno == EWOULDBLOCK) {
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
