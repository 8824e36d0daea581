#include "poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "titan/base/error.h"

namespace titan {
namespace {

void control(int epoll, int operation, int descriptor, uint32_t events, uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (::epoll_ctl(epoll, operation, descriptor, &event) == 0) return;
  throw Error(ExitCode::launcher, fmt::format("epoll_ctl failed for a connection: errno {}", errno));
}

}  // namespace

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw Error(ExitCode::launcher, fmt::format("epoll_create1 failed: errno {}", errno));
}

void Poller::add(int descriptor, uint64_t key) { control(epoll_.get(), EPOLL_CTL_ADD, descriptor, EPOLLIN, key); }

void Poller::want_writes(int descriptor, uint64_t key, bool wanted) {
  const uint32_t writes = wanted ? uint32_t{EPOLLOUT} : 0;
  control(epoll_.get(), EPOLL_CTL_MOD, descriptor, uint32_t{EPOLLIN} | writes, key);
}

void Poller::remove(int descriptor) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr); }

std::vector<uint64_t> Poller::wait(int milliseconds) {
  std::array<epoll_event, 512> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  std::vector<uint64_t> keys;
  for (int i = 0; i < std::max(0, count); ++i) keys.push_back(events[static_cast<size_t>(i)].data.u64);
  return keys;
}

}  // namespace titan
