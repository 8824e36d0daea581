// A question whether others live, and how long it may stay open: of the thread that watches over the ranks, which looks
// at it about every second. What is asked and who has answered is the watcher's business.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "channel.h"
#include "ending.h"
#include "rank_messages.h"
#include "titan/base/final_message.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/rendezvous.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

class HealthCheck {
 public:
  /// Half of `patience` is left to answer: the other half has passed before the question (WaitForGraph). Not less than
  /// kSignOfLifeLimit: a hiccup of the network is no silence.
  void ask(Deadline now, std::chrono::milliseconds patience);
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  /// While it is open: when to look next at the latest.
  Deadline until() const { return until_; }
  /// Whether it has been open for too long. Time in which this process was stopped itself does
  /// not count: what others said then has not been read yet.
  bool is_overdue(Deadline now);
  std::chrono::seconds open_for(Deadline now) const;

 private:
  bool open_ = false;
  Deadline since_{};
  Deadline until_{};
  Deadline looked_at_{};
};

// The side of every rank but 0 of the run's channels: connects to rank 0, then keeps and monitors the connection.

class CoordinatorClient : public AbortWatcher {
 public:
  /// `waits`: the source of this rank's wait-for answers; `final_message`: printed when another rank's failure ends
  /// this process; may be null.
  CoordinatorClient(RankFacts facts, PeerFailed tell, std::shared_ptr<WaitForGraph> waits,
                    std::shared_ptr<FinalMessage> final_message);
  ~CoordinatorClient() override;

  /// Finds the rank 0 that knows `secret` on the first of `ports` where it answers. Throws Error(launcher) at the
  /// deadline.
  void call(const std::string& host, const std::vector<uint16_t>& ports, const std::string& secret, Deadline deadline);
  /// Waits until rank 0 has gathered all ranks, and starts monitoring. Throws RefusedByRankZero, with the exit code of
  /// this rank's own problem when it has one, or Error when rank 0 is gone.
  Welcome join(Deadline deadline);
  /// Of a rank that has joined.
  c10::intrusive_ptr<c10d::Store> store();

  bool fail(int code, const std::string& text) override;
  std::vector<int64_t> leave(std::chrono::seconds limit) override;

 private:
  /// Calls of the store that wait for rank 0's answer. Shared with the stores, which may outlive the link.
  struct StoreCalls {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int64_t, std::optional<StoreAnswer>> answers;  // by the id of the call
    int64_t last_id = 0;
    std::function<void(const StoreCall& call)> send;  // empty: the connection is closed

    std::optional<StoreAnswer> ask(StoreCall call);
    void take(StoreAnswer answer);
  };

  /// Whether rank 0 of this run answers on the channel, which is then channel_.
  bool is_rank_zero(Channel channel, uint16_t port, const std::string& secret);
  void watch();
  void hear();
  void rank_zero_is_gone();
  void write_final_message() const;
  /// It does not answer, although the connection is open. `aloud`: this rank reports it to the user.
  [[noreturn]] void rank_zero_is_silent(const std::string& text, bool aloud);
  /// Has all ranks asked when this one waits for one that may work for long; ends the run when not even rank 0 answers.
  void look_for_life();

  RankFacts facts_;
  bool witness_ = false;  // reports the loss of rank 0
  PeerFailed tell_;
  std::shared_ptr<WaitForGraph> waits_;
  std::shared_ptr<FinalMessage> final_message_;
  Channel channel_;
  const std::shared_ptr<StoreCalls> store_calls_ = std::make_shared<StoreCalls>();
  std::string rank_zero_;  // its name, as far as known

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Refusal> own_failure_;
  Deadline end_at_{};  // of the process, once it has failed
  bool heard_ = false;
  bool is_the_cause_ = false;
  bool leaving_ = false;
  bool farewell_ = false;
  bool stop_ = false;
  // Used by the connection's thread only.
  bool is_alone_ = false;  // rank 0 is gone, and this rank has reported it
  HealthCheck life_;       // to rank 0

  Wake wake_;
  std::thread thread_;
};

}  // namespace titan
