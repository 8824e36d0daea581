// Rank 0's side of the run's channels: gathers the ranks, then monitors them on a separate thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "channel.h"
#include "coordinator_client.h"
#include "ending.h"
#include "rank_messages.h"
#include "titan/base/final_message.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/rendezvous.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

class Coordinator : public AbortWatcher {
 public:
  /// `zero`: rank 0's own facts; `secret`: required of every caller; `waits`: which ranks rank 0 is blocked on;
  /// `final_message`: printed when another rank's failure ends this process; may be null.
  Coordinator(Descriptor listener, std::string secret, RankFacts zero, PeerFailed tell,
              std::shared_ptr<WaitForGraph> waits, std::shared_ptr<FinalMessage> final_message);
  ~Coordinator() override;

  /// Waits until every rank is there and fits. Throws Error after telling all who came: a rank that does not fit or
  /// left, ranks missing at the deadline, a signal. Afterwards the others wait to be welcomed. `host`: where they were
  /// given to find this rank; reported if it is not this machine.
  const RankCheck& gather(Deadline deadline, const std::string& host);
  /// Releases all ranks to start the run, and starts monitoring.
  void welcome();
  /// The store of rank 0's own threads.
  c10::intrusive_ptr<c10d::Store> store();

  bool fail(int code, const std::string& text) override;
  std::vector<int64_t> leave(std::chrono::seconds limit) override;

 private:
  /// A connection that has not identified its rank yet.
  struct Caller {
    Channel channel;
    Handshake handshake;
    Deadline until;  // when it is dropped
    bool is_silent = true;
    bool is_proven = false;
  };
  struct Member {
    int64_t rank;
    Channel channel;
    bool left = false;
    bool lives = false;                                            // has answered the question of life_
    bool is_gone = false;                                          // its channel is closed, and that was looked into
    std::vector<std::pair<StoreCall, Deadline>> store_calls = {};  // that wait for keys
  };

  /// Waits for a connection or a message; callers that identify themselves become members.
  std::vector<RankFacts> hear_callers(Deadline deadline);
  void accept_callers();
  /// The facts of a caller that is a rank of this run. Its time is over when it has none to send.
  std::optional<RankFacts> hear_caller(Caller& caller);
  bool has_heard_all() const;
  void check_members_stay();
  /// Reports the refusal to the ranks that joined, and throws.
  [[noreturn]] void refuse_members(const Refusal& refusal);
  /// The same, after a short time in which late ranks can still join.
  [[noreturn]] void refuse_all(const Refusal& refusal);

  void watch();
  void hear(Member& member);
  /// False when the member sent something that is not a message.
  bool take(Member& member, RankMessage message);
  void send_to_all(const std::string& line);
  void answer_store(Member& member, const StoreCall& call, Deadline until);
  void answer_waiting();
  void lost(const Member& member);
  void report(Cause cause);
  /// `cause` reports a peer failure: asks all ranks which ranks they wait for.
  void suspect(Cause cause);
  /// Determines the rank at fault once all ranks that can answer have done so.
  Cause found_from_waits() const;
  /// On behalf of rank `asker`, which waits for a rank that may be busy for long.
  void ask_for_life(int64_t asker, std::chrono::milliseconds patience);
  /// Asks if this rank waits that way; ends the run for a rank that does not answer.
  void look_for_life();
  /// The lowest rank that has not answered; -1: none.
  int64_t lowest_silent() const;
  /// Tells the others when it is time to; ends the process when the cause is not this rank itself.
  void announce_when_due();
  /// Of rank 0 when it is the cause: it has not failed.
  bool is_hanging_itself();
  void wait_until_gone(Deadline deadline);
  bool say_farewell();

  Descriptor listener_;
  const std::string secret_;
  RankCheck rank_check_;
  PeerFailed tell_;
  std::shared_ptr<WaitForGraph> waits_;
  std::shared_ptr<FinalMessage> final_message_;
  std::vector<Caller> callers_;
  int64_t strangers_ = 0;    // callers without the secret
  int64_t silent_ = 0;       // callers that sent nothing
  Deadline accept_again_{};  // after running out of file descriptors
  const std::shared_ptr<StoreTable> table_ = std::make_shared<StoreTable>();
  std::vector<Member> members_;
  bool welcomed_ = false;

  // Used by the monitoring thread only.
  std::optional<Cause> cause_;
  std::optional<Cause> suspected_;   // a rank says that a peer failed it: the cause, unless the peer turns up in time
  std::vector<WaitAnswer> answers_;  // wait-for edges received since the suspicion
  HealthCheck life_;
  int64_t life_asker_ = 0;
  Deadline announce_at_{};
  Deadline suspect_until_{};
  bool announced_ = false;

  std::mutex mutex_;  // of what follows, shared with the callers of fail and leave
  std::condition_variable changed_;
  std::optional<Cause> own_failure_;
  bool own_failure_announced_ = false;
  bool leaving_ = false;
  bool stop_ = false;
  bool done_ = false;
  std::vector<int64_t> unfinished_;

  Wake wake_;
  std::thread thread_;
};

}  // namespace titan
