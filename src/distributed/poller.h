// Waits for many descriptors at once (epoll). A call costs as much as there are descriptors ready, where poll(2) costs
// as much as there are descriptors: rank 0 has one for each rank, and is woken for each message of each rank.
#pragma once

#include <cstdint>
#include <vector>

#include "channel.h"

namespace titan {

class Poller {
 public:
  Poller();

  /// Reports `key` when `descriptor` can be read or is closed by its peer. A closed descriptor leaves by itself.
  void add(int descriptor, uint64_t key);
  /// Whether to report it also when it can be written.
  void want_writes(int descriptor, uint64_t key, bool wanted);
  void remove(int descriptor);
  /// The keys of those that are ready, at most some hundred a call; waits for up to `milliseconds` for the first.
  std::vector<uint64_t> wait(int milliseconds);

  /// Can be read when wait() has something to return.
  int descriptor() const { return epoll_.get(); }

 private:
  Descriptor epoll_;
};

}  // namespace titan
