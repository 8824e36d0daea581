// Ends the process from a watcher thread: the only place besides `main`, which may be blocked in a collective.
#pragma once

#include <string>
#include <string_view>

#include "channel.h"

namespace titan {

/// From a failure that was reported to the end of the process: time for the tear-down, which may wait for dead peers.
inline constexpr std::chrono::seconds kOwnEndLimit{3};
/// How long the others wait for a failed rank to be gone, so that launchers see its exit code first.
inline constexpr std::chrono::seconds kFirstToEndLimit{2};
/// How long a failed rank waits for rank 0's acknowledgement.
inline constexpr std::chrono::seconds kHeardLimit{1};
/// How long a rank that lost a peer waits for the original failure.
inline constexpr std::chrono::seconds kTrueCauseLimit{2};

/// How long a rank that works may leave the question open whether it lives, at least.
inline constexpr std::chrono::seconds kSignOfLifeLimit{4};

/// How long a run that cannot start waits for ranks that are still on their way, to tell them why.
inline constexpr std::chrono::seconds kRefusalLimit{5};
/// How long a rank that cannot take part looks for rank 0 to say so.
inline constexpr std::chrono::seconds kProblemLimit{8};

/// How long a rank stays after the one that failed is gone: launchers look at their processes every tenth of a second
/// or so, and are to find that one first.
inline constexpr std::chrono::milliseconds kNoticeTime{500};

/// Said of a rank that does not answer over its connection, which a thread of its own keeps.
inline constexpr std::string_view kNoSignOfLife =
    "hangs: it gives no sign of life, so its process or its host is stopped";

/// Between two looks for somebody who has not come yet.
inline constexpr int kRetryMilliseconds = 100;

/// While ranks gather: throws Error(interrupted) once a signal has asked this one to stop.
void end_at_a_signal();

[[noreturn]] void end_for_peer();
/// The same when the peer hangs and cannot end with the code of a hang itself.
[[noreturn]] void end_for_silent_peer();
/// For the rank on which the other ranks timed out.
[[noreturn]] void end_hanging();
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
