#include "shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "titan/base/error.h"

namespace titan {
namespace {

[[noreturn]] void fail(const std::string& what, int why) {
  throw Error(ExitCode::launcher, fmt::format("{}: {}", what, std::strerror(why)));
}

std::string unreachable(const std::string& address) {
  return "memory of another rank of this host (" + address + ") cannot be opened";
}

uint64_t random_number() {
  uint64_t number = 0;
  if (::getentropy(&number, sizeof number) != 0) fail("the system gives no random numbers", errno);
  return number;
}

}  // namespace

SharedSegment::SharedSegment(int file, std::string address, int64_t bytes)
    : file_(file), address_(std::move(address)), bytes_(bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(kHead + bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) {
    const int why = errno;
    ::close(file_);
    fail(fmt::format("{} bytes of shared memory cannot be mapped", bytes_), why);
  }
  memory_ = static_cast<char*>(memory);
}

SharedSegment::~SharedSegment() {
  ::munmap(memory_, static_cast<size_t>(kHead + bytes_));
  ::close(file_);
}

std::shared_ptr<SharedSegment> SharedSegment::create(int64_t bytes) {
  const std::string taken = fmt::format("{} bytes of shared memory cannot be had", bytes);
  const int file = ::memfd_create("titan", MFD_CLOEXEC);
  if (file < 0) fail(taken, errno);
  if (const int refused = ::posix_fallocate(file, 0, kHead + bytes)) {
    ::close(file);
    fail(taken, refused);
  }
  const uint64_t nonce = random_number();
  std::string address = fmt::format("{}:{}:{}:{}", ::getpid(), file, bytes, nonce);
  std::shared_ptr<SharedSegment> segment(new SharedSegment(file, std::move(address), bytes));
  std::memcpy(segment->memory_, &nonce, sizeof nonce);
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(const std::string& address) {
  long process = 0;
  int owners_file = 0;
  long long bytes = 0;
  unsigned long long nonce = 0;
  const int read = std::sscanf(address.c_str(), "%ld:%d:%lld:%llu", &process, &owners_file, &bytes, &nonce);
  TITAN_CHECK(read == 4, address);
  const std::string path = fmt::format("/proc/{}/fd/{}", process, owners_file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) {
    throw Error(ExitCode::peer_failure, fmt::format("process {}, another rank of this host, has ended", process));
  }
  if (file < 0) fail(unreachable(address), errno);
  struct stat facts {};
  if (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size != kHead + bytes) {
    ::close(file);
    fail(unreachable(address), ESTALE);
  }
  std::shared_ptr<SharedSegment> segment(new SharedSegment(file, address, bytes));
  const auto expected = static_cast<uint64_t>(nonce);
  if (std::memcmp(segment->memory_, &expected, sizeof expected) != 0) fail(unreachable(address), ESTALE);
  return segment;
}

}  // namespace titan
