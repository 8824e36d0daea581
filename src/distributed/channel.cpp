#include "channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace titan {
namespace {

constexpr int kBacklog = 4096;  // all ranks connect at once; the kernel cuts it to its own limit (somaxconn)
// A host that lost power sends nothing; it counts as lost after about a minute without an answer. A shorter limit would
// end runs because of short network outages.
constexpr int kQuietSeconds = 20;
constexpr int kProbeSeconds = 10;
constexpr int kProbes = 4;

void set(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); }

void set_keepalive(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kQuietSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, poll_time(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// All addresses of a host, as a list; null if there are none, with getaddrinfo's `error`. `port`: null for none.
Addresses addresses_of(const std::string& host, const char* port, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = ::getaddrinfo(host.c_str(), port, &hints, &found);
  return {error == 0 ? found : nullptr, ::freeaddrinfo};
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// Connects to one address. Returns 0 or the error number.
int connect_address(int socket, const addrinfo& address, Deadline deadline) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
  int reason = 0;
  socklen_t length = sizeof reason;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &reason, &length);
  return reason;
}

}  // namespace

ControlTraffic& ControlTraffic::operator+=(const ControlTraffic& other) {
  messages_sent += other.messages_sent;
  bytes_sent += other.bytes_sent;
  messages_received += other.messages_received;
  bytes_received += other.bytes_received;
  return *this;
}

ControlTraffic ControlTraffic::operator-(const ControlTraffic& before) const {
  return {messages_sent - before.messages_sent, bytes_sent - before.bytes_sent,
          messages_received - before.messages_received, bytes_received - before.bytes_received};
}

int poll_time(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000));
}

void Descriptor::close() {
  if (value_ >= 0) ::close(value_);
  value_ = -1;
}

Descriptor listen_on(const std::string& address, uint16_t port) {
  // An IPv6 socket takes IPv4 callers as well; not every machine has IPv6.
  std::vector<std::string> choices{address};
  if (address.empty()) choices = {"::", "0.0.0.0"};
  for (const std::string& choice : choices) {
    int error = 0;
    const Addresses found = addresses_of(choice, std::to_string(port).c_str(), error);
    if (!found) continue;
    Descriptor listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener) continue;
    set(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (found->ai_family == AF_INET6) set(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(listener.get(), found->ai_addr, found->ai_addrlen) == 0) {
      if (::listen(listener.get(), kBacklog) == 0) return listener;
      return {};
    }
    if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) return {};
  }
  return {};
}

uint16_t port_of(const Descriptor& listener) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  uint16_t port = 0;  // read without a case for each address family: it is at the same offset in both
  std::memcpy(&port, reinterpret_cast<const char*>(&storage) + offsetof(sockaddr_in, sin_port), sizeof port);
  return ntohs(port);
}

Channel::Channel(Descriptor socket) : socket_(std::move(socket)), open_(static_cast<bool>(socket_)) {
  set_keepalive(socket_.get());
}

bool names_this_machine(const std::string& host) {
  int error = 0;
  const Addresses addresses = addresses_of(host, nullptr, error);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0) return true;
  }
  return false;
}

std::string loopback_address_of(const std::string& host) {
  int error = 0;
  const Addresses addresses = addresses_of(host, nullptr, error);
  std::string chosen;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (!is_loopback(address->ai_addr) || ::getnameinfo(address->ai_addr, address->ai_addrlen, text.data(), text.size(),
                                                        nullptr, 0, NI_NUMERICHOST) != 0) {
      return {};
    }
    if (chosen.empty() || address->ai_family == AF_INET) chosen = text.data();
  }
  return chosen;
}

std::optional<Channel> Channel::connect(const std::string& host, uint16_t port, std::chrono::milliseconds limit,
                                        std::string& reason) {
  const Deadline deadline = std::chrono::steady_clock::now() + limit;
  int error = 0;
  const Addresses addresses = addresses_of(host, std::to_string(port).c_str(), error);
  if (!addresses) reason = ::gai_strerror(error);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = socket ? connect_address(socket.get(), *address, deadline) : errno;
    if (error == 0) return Channel(std::move(socket));
    reason = std::strerror(error);
  }
  return std::nullopt;
}

std::optional<Channel> Channel::accept(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return std::nullopt;
  return Channel(std::move(socket));
}

bool Channel::send_line(std::string_view line, std::chrono::milliseconds limit) {
  const std::lock_guard lock(*sending_);
  if (!line.empty()) {
    unsent_.append(line) += '\n';
    ++traffic_.messages_sent;
    traffic_.bytes_sent += std::ssize(line) + 1;
  }
  const Deadline deadline = std::chrono::steady_clock::now() + limit;
  size_t begin = 0;
  bool waits = true;
  while (begin < unsent_.size() && waits) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data() + begin, unsent_.size() - begin, MSG_NOSIGNAL);
    if (sent >= 0) {
      begin += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      waits = limit.count() > 0 && wait_for(socket_.get(), POLLOUT, deadline);
    } else if (errno != EINTR) {
      begin = unsent_.size();  // keeping it is of no use: the connection is broken
      waits = false;
    }
  }
  unsent_.erase(0, begin);
  return waits;
}

ControlTraffic Channel::traffic() const {
  const std::lock_guard lock(*sending_);
  return traffic_;
}

bool Channel::has_unsent() const {
  const std::lock_guard lock(*sending_);
  return !unsent_.empty();
}

bool Channel::read_arrived() {
  std::array<char, 65536> buffer;
  while (open_ && received_.size() - taken_ <= longest_line_) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      received_.append(buffer.data(), static_cast<size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      open_ = got < 0 && errno == EAGAIN;
      return open_;
    }
  }
  open_ = open_ && received_.find('\n', searched_) != std::string::npos;
  return open_;
}

std::optional<std::string> Channel::take_line() {
  const size_t end = received_.find('\n', searched_);
  if (end == std::string::npos) {
    received_.erase(0, std::exchange(taken_, 0));
    searched_ = received_.size();
    return std::nullopt;
  }
  std::string line = received_.substr(taken_, end - taken_);
  taken_ = searched_ = end + 1;
  const std::lock_guard lock(*sending_);
  ++traffic_.messages_received;
  traffic_.bytes_received += std::ssize(line) + 1;
  return line;
}

std::optional<std::string> Channel::wait_line(Deadline deadline) {
  for (;;) {
    if (std::optional<std::string> line = take_line()) return line;
    if (!open_ || !wait_for(socket_.get(), POLLIN, deadline)) return std::nullopt;
    read_arrived();
  }
}

void Channel::close() {
  open_ = false;
  socket_.close();
}

}  // namespace titan
