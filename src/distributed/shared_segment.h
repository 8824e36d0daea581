// A piece of memory that processes of one host share. It has no name in any file system: whoever knows its address
// opens it through its owner's file descriptor, nothing is left behind however a run ends, and no limit of /dev/shm
// applies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace titan {

class SharedSegment {
 public:
  /// `bytes` of zeros, all taken now: memory that is missing is an error here and not a signal at the first touch.
  /// Throws Error(launcher) when they cannot be had.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);
  /// The segment behind another's `address`. Throws Error(peer_failure) when its owner cannot be seen: it has ended, or
  /// is of another container; Error(launcher) when it cannot be reached otherwise: it belongs to another user.
  static std::shared_ptr<SharedSegment> open(const std::string& address);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// What `open` takes, valid while this object lives.
  const std::string& address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Aligned to a cache line.
  char* data() const { return memory_ + kHead; }

 private:
  /// In front of the data: a number that no other segment has, so that a process id that means somebody else here is
  /// noticed.
  static constexpr int64_t kHead = 64;

  SharedSegment(int file, std::string address, int64_t bytes);

  int file_;
  std::string address_;
  int64_t bytes_;
  char* memory_ = nullptr;
};

}  // namespace titan
