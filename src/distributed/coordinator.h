// Rank 0's side of the run's channels: monitors all ranks on a separate thread and serves the run's store.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "channel.h"
#include "ending.h"
#include "failure_diagnosis.h"
#include "gather.h"
#include "poller.h"
#include "rank_messages.h"
#include "titan/base/final_message.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

class Coordinator : public AbortWatcher {
 public:
  /// Releases the gathered ranks to start the run, and starts to monitor them. `waits`: which ranks rank 0 is blocked
  /// on; `final_message`: printed when another rank's failure ends this process; may be null.
  Coordinator(GatheredRanks ranks, PeerFailed peer_failed, std::shared_ptr<WaitForGraph> waits,
              std::shared_ptr<FinalMessage> final_message);
  ~Coordinator() override;

  /// The store for rank 0's own threads.
  c10::intrusive_ptr<c10d::Store> store();

  bool fail(int code, const std::string& text) override;
  std::vector<int64_t> leave(std::chrono::seconds limit) override;
  ControlTraffic traffic() const override;

 private:
  struct Member {
    int64_t rank;
    Channel channel;
    bool left = false;
    bool is_gone = false;       // its channel is closed, and this was handled
    bool wants_writes = false;  // lines wait until its channel can take them
  };

  // A pass of the monitoring thread costs as much as the members that have sent something. It is made for nearly each
  // message of each rank, so what costs as much as all members would grow with the square of their number.
  void watch();
  /// Waits for members with something to read or room to write, and serves them.
  void serve(Deadline until);
  /// Sends what the member can take at once; the rest follows when it can take more.
  void send(Member& member, const std::string& line);
  void hear(Member& member);
  /// False if the member sent something that is not a message.
  bool take(Member& member, RankMessage message);
  void send_to_all(const std::string& line);
  /// Asks all ranks which ranks they wait for; an answer also shows that the rank is alive.
  void ask_all();
  void answer_store(const WaitingCall& call);
  void answer_waiting();
  void report(Cause cause);
  /// Asks the other ranks whether they are alive if this rank waits for one that may be busy for long. Ends the run if
  /// a rank does not answer.
  void check_health();
  /// Announces the cause to the other ranks once that is due. Ends the process if another rank is the cause, or if this
  /// one is and its main thread does not end it.
  void announce_when_due();
  void wait_until_gone(const Cause& cause, Deadline deadline);
  bool say_farewell();

  PeerFailed peer_failed_;
  std::shared_ptr<WaitForGraph> waits_;
  std::shared_ptr<FinalMessage> final_message_;
  const std::shared_ptr<StoreTable> table_ = std::make_shared<StoreTable>();

  // Used by the monitoring thread only.
  std::vector<Member> members_;
  size_t left_ = 0;  // members that have left
  Poller poller_;    // of members_, by index, and of wake_
  FailureDiagnosis diagnosis_;
  Deadline end_at_{};  // deadline of this process, once its own failure is announced

  std::mutex mutex_;  // guards the members below, shared with callers of fail and leave
  std::condition_variable changed_;
  std::optional<Cause> own_failure_;
  bool announced_ = false;
  bool leaving_ = false;
  bool stop_ = false;
  std::optional<std::vector<int64_t>> unfinished_;  // the ranks that had not left when this one did

  Wake wake_;
  std::thread thread_;
};

}  // namespace titan
