// Whom a rank waits for at this moment, for when a rank hangs: the others wait for each other, and only who follows
// from waiter to waiter comes to the one that they all wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace titan {

/// Of one rank; may be used from any thread.
class WaitForGraph {
 public:
  using Ranks = std::shared_ptr<const std::vector<int64_t>>;
  using Clock = std::chrono::steady_clock;

  void begin(int64_t rank);
  void end(int64_t rank);
  /// For many ranks at once, the same object in both: costs no more than for one.
  void begin(const Ranks& ranks);
  void end(const Ranks& ranks);
  /// This rank has waited in vain: what is noted now stays, whatever else it lets go of on its way out.
  void keep();
  /// Ranks of the run, rising, each once.
  std::vector<int64_t> now() const;

  /// As begin(rank), for one that may work for long (PatientWait): whether it lives is to be asked half of `patience`
  /// later, and as often again. Returns the number of this wait, for its end.
  int64_t begin_patient(int64_t rank, std::chrono::milliseconds patience);
  void end_patient(int64_t number);
  /// For the thread that watches over the ranks: the patience of a wait for which it is to ask now, each time once.
  std::optional<std::chrono::milliseconds> question_due(Clock::time_point now);
  /// To be told by that thread: at this time an answer was complete, so that whoever is waited for lives.
  void note_life(Clock::time_point now);
  bool were_alive_since(Clock::time_point then) const;

 private:
  struct Patient {
    int64_t rank;
    std::chrono::milliseconds patience;
    Clock::time_point next_question;
  };

  mutable std::mutex mutex_;
  bool kept_ = false;
  std::map<int64_t, int64_t> waiting_;  // how often, by rank
  std::map<Ranks, int64_t> together_;   // the same of many at once
  std::map<int64_t, Patient> patient_;  // by number
  int64_t next_number_ = 0;
  Clock::time_point lived_at_{};
};

/// A wait for a rank that may work for long, as in a save: noted while this object is. The rank is waited for as long
/// as its process gives signs of life; a rank that gives none ends the run (AbortWatcher).
class PatientWait {
 public:
  /// `waits` may be null: nobody asks.
  PatientWait(std::shared_ptr<WaitForGraph> waits, int64_t rank, std::chrono::milliseconds patience);
  ~PatientWait();
  PatientWait(const PatientWait&) = delete;
  PatientWait& operator=(const PatientWait&) = delete;

 private:
  std::shared_ptr<WaitForGraph> waits_;
  int64_t number_ = 0;
};

/// What a rank says when it is asked whom it waits for.
struct WaitAnswer {
  int64_t rank;
  std::vector<int64_t> waits_for;  // empty: for nobody; it computes, reads or writes
};

/// Who holds up a run in which `reporter` waited in vain: found from waiter to waiter.
struct WaitEnd {
  int64_t rank = -1;  ///< -1: nobody is found; ranks wait in a circle, or `reporter` could not say for whom it waits
  bool answers = false;
};
/// `answers`: of all ranks that gave one. Who gave none is stopped or its host is. Of several at whom the waiting ends,
/// one without an answer comes first, then the lowest rank.
WaitEnd end_of_waits(const std::vector<WaitAnswer>& answers, int64_t reporter);

}  // namespace titan
