// Ends the process from the thread that watches the other ranks, since `main` may be blocked in a collective. The
// thread that watches for signals ends it by itself (base/stop_signals.h).
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "channel.h"

namespace titan {

/// From the report of a failure to the end of the process: time for the tear-down, which may wait for dead peers.
inline constexpr std::chrono::seconds kOwnEndLimit{3};
/// How long the others wait for a failed rank to be gone, so that launchers see its exit code first.
inline constexpr std::chrono::seconds kFirstToEndLimit{2};
/// How long a failed rank waits for rank 0's acknowledgement.
inline constexpr std::chrono::seconds kHeardLimit{1};
/// How long a rank that lost a peer waits for the original failure.
inline constexpr std::chrono::seconds kTrueCauseLimit{2};

/// How long a rank may take to answer a health check, at least.
inline constexpr std::chrono::seconds kSignOfLifeLimit{4};
/// Of a rank that does not answer over its connection, which has a thread of its own.
inline constexpr std::string_view kNoSignOfLife =
    "hangs: it gives no sign of life, so its process or its host is stopped";

/// With the exit code of a peer failure. Waits for half a second first: launchers look at their processes every tenth
/// of a second or so, and must find the rank that failed first.
[[noreturn]] void end_for_peer();
/// The same with the code of a hang, when the peer that hangs cannot end with it.
[[noreturn]] void end_for_silent_peer();
/// For the rank on which the other ranks timed out.
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
