// A question whether others live, and how long it may stay open: of the thread that watches over the ranks, which looks
// at it about every second. What is asked and who has answered is the watcher's business.
#pragma once

#include <chrono>

#include "channel.h"

namespace titan {

class LifeQuestion {
 public:
  /// Half of `patience` is left to answer: the other half has passed before the question (PeerWaits). Not less than
  /// kSignOfLifeLimit: a hiccup of the network is no silence.
  void ask(Deadline now, std::chrono::milliseconds patience);
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  /// While it is open: when to look next at the latest.
  Deadline until() const { return until_; }
  /// Whether it has been open for too long. Time in which nobody looked, because this process was stopped itself, does
  /// not count: what others said then has not been read yet.
  bool is_overdue(Deadline now);
  std::chrono::seconds open_for(Deadline now) const;

 private:
  bool open_ = false;
  Deadline since_{};
  Deadline until_{};
  Deadline looked_at_{};
};

}  // namespace titan
