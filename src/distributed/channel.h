// Lines of text over TCP between the ranks of a run, with limits on time and length. The kernel closes a process's
// connections when it dies, which is how the other ranks notice.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "titan/distributed/abort_watcher.h"

namespace titan {

using Deadline = std::chrono::steady_clock::time_point;

/// Milliseconds until `deadline`, for poll(2): at least 0 and at most a second, since callers also check for signals.
int poll_time(Deadline deadline);

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  explicit operator bool() const { return value_ >= 0; }
  void close();

 private:
  int value_ = -1;
};

/// A listening socket on one address of the host, in digits; empty: on every address. Port 0 takes any free one.
/// Invalid, with errno set, when the port is in use or not permitted.
Descriptor listen_on(const std::string& address, uint16_t port);
/// The loopback address that `host` resolves to, in digits, IPv4 preferred; empty when it has any other address.
std::string loopback_address_of(const std::string& host);
/// Whether `host` is this machine's name or address.
bool names_this_machine(const std::string& host);
/// The port of a listening socket.
uint16_t port_of(const Descriptor& listener);

/// Maximum line length, which bounds what a peer can make this process hold: of a caller that has not authenticated,
/// whose handshake takes some hundred bytes; of a rank that joins, which sends its config; and of a rank of the run,
/// which sends what c10d stores.
inline constexpr size_t kStrangersLine = size_t{4} << 10;
inline constexpr size_t kJoiningLine = size_t{1} << 20;
inline constexpr size_t kMembersLine = size_t{64} << 20;

/// One connection. One thread reads; any thread may send.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor socket);
  /// nullopt when no connection was made within `limit`; `reason` is then the cause.
  static std::optional<Channel> connect(const std::string& host, uint16_t port, std::chrono::milliseconds limit,
                                        std::string& reason);
  /// Accepts the next caller of a listening socket. Nothing if there is none, or if descriptors ran out (errno).
  static std::optional<Channel> accept(const Descriptor& listener);

  /// False when the peer has disconnected or did not take the line within `limit`; flush() sends the rest.
  bool send_line(std::string_view line, std::chrono::milliseconds limit = std::chrono::seconds(5));
  /// Sends as much as possible without blocking.
  void flush() { send_line({}, std::chrono::milliseconds(0)); }
  bool has_unsent() const;
  /// Reads what has arrived, without waiting. False once the peer has disconnected or sent a line that is too long;
  /// earlier lines can still be taken.
  bool read_arrived();
  void set_longest_line(size_t bytes) { longest_line_ = bytes; }
  std::optional<std::string> take_line();
  /// Waits for a line. Nothing at the deadline, or when the peer has disconnected (then is_open() is false).
  std::optional<std::string> wait_line(Deadline deadline);

  /// Lines and bytes that were handed to send_line and taken, so far.
  ControlTraffic traffic() const;

  bool is_open() const { return open_; }
  int descriptor() const { return socket_.get(); }
  void close();
  /// Keeps the connection open until the process exits, so that the peer sees when it exits.
  void keep_until_exit() { socket_.release(); }

 private:
  Descriptor socket_;
  std::string received_;
  size_t taken_ = 0, searched_ = 0;  // positions in `received_`: end of the taken lines, start of the unsearched bytes
  size_t longest_line_ = kStrangersLine;
  bool open_ = false;
  std::unique_ptr<std::mutex> sending_ = std::make_unique<std::mutex>();  // guards the members below
  std::string unsent_;
  ControlTraffic traffic_;
};

}  // namespace titan
