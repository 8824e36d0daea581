// Ends the process from the thread that monitors the other ranks, since `main` may be blocked in a collective. The
// signal thread ends the process separately (base/stop_signals.h).
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "channel.h"

namespace titan {

/// Time that a failed rank has from the report of its failure to its exit. Its tear-down may block on dead peers.
inline constexpr std::chrono::seconds kOwnEndLimit{3};
/// How long the other ranks wait until a failed rank has exited, so that launchers see its exit code first.
inline constexpr std::chrono::seconds kFirstToEndLimit{2};
/// How long a failed rank waits for rank 0's acknowledgement. Rank 0 sends it from a separate thread, so only a rank 0
/// whose process or host is stopped does not.
inline constexpr std::chrono::seconds kHeardLimit{1};
/// How long a rank that lost a peer waits for the original failure, so that the message names the cause.
inline constexpr std::chrono::seconds kTrueCauseLimit{2};

/// Minimum time that a rank has to answer a health check.
inline constexpr std::chrono::seconds kSignOfLifeLimit{4};
/// Reported for a rank that does not answer over its connection, although a separate thread serves it.
inline constexpr std::string_view kNoSignOfLife = "hangs: it does not respond; its process or host is stopped";
/// Reported for a rank whose connection is closed although it has neither left nor reported a failure.
inline constexpr std::string_view kEndedWithoutMessage = "ended without a message: it crashed or was killed";

/// Exits with the code of a peer failure. Waits half a second first: launchers poll their processes about every tenth
/// of a second and must see the exit of the failed rank first.
[[noreturn]] void end_for_peer();
/// Waits as end_for_peer does and exits with the code of a hang: the peer that hangs cannot exit with it.
[[noreturn]] void end_for_silent_peer();
/// Ends this rank because the other ranks timed out waiting for it.
[[noreturn]] void end_hanging();
/// Prints `text`: this rank failed, and its main thread does not end the process.
[[noreturn]] void end_stuck(int code, const std::string& text);

/// Wakes a thread that waits in poll(2).
class Wake {
 public:
  Wake();
  void ring() const;
  void clear() const;
  int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

}  // namespace titan
