// Rank 0's clients: every other rank monitors its connection to rank 0 on a separate thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "channel.h"
#include "ending.h"
#include "failure_diagnosis.h"
#include "gather.h"
#include "rank_messages.h"
#include "titan/base/final_message.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

class CoordinatorClient : public AbortWatcher {
 public:
  /// Starts to monitor the connection of rank `rank`. `waits`: which ranks it is blocked on; `final_message`: printed
  /// when another rank's failure ends this process; may be null.
  CoordinatorClient(int64_t rank, JoinedRun run, PeerFailed peer_failed, std::shared_ptr<WaitForGraph> waits,
                    std::shared_ptr<FinalMessage> final_message);
  ~CoordinatorClient() override;

  /// Sends its calls to rank 0.
  c10::intrusive_ptr<c10d::Store> store();

  bool fail(int code, const std::string& text) override;
  std::vector<int64_t> leave(std::chrono::seconds limit) override;
  ControlTraffic traffic() const override { return channel_.traffic(); }

 private:
  /// Store calls that wait for rank 0's answer. Shared with the stores, which may outlive the connection.
  struct StoreCalls {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int64_t, std::optional<StoreAnswer>> answers;  // by the id of the call
    int64_t last_id = 0;
    std::function<void(const StoreCall& call)> send;  // empty: the connection is closed

    std::optional<StoreAnswer> ask(StoreCall call);
    void take(StoreAnswer answer);
  };

  void watch();
  void hear();
  void take(RankMessage message);
  /// Ends the process with the cause that rank 0 sent.
  void take_end(const Cause& cause);
  void rank_zero_is_gone();
  /// Ends the process: rank 0 does not answer, although the connection is open. `aloud`: this rank reports it.
  [[noreturn]] void rank_zero_is_silent(const std::string& text, bool aloud);
  /// Has rank 0 ask all ranks whether they are alive if this rank waits for one that may be busy for long. Ends this
  /// process if rank 0 itself does not answer.
  void check_health();
  void say_final_message() const;

  const int64_t rank_;
  Channel channel_;
  const std::string rank_zero_;  // its name
  const bool witness_;           // reports the loss of rank 0; one rank per host
  PeerFailed peer_failed_;
  std::shared_ptr<WaitForGraph> waits_;
  std::shared_ptr<FinalMessage> final_message_;
  const std::shared_ptr<StoreCalls> store_calls_ = std::make_shared<StoreCalls>();
  HealthDeadline health_;  // of rank 0; used by the monitoring thread only

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<Refusal> own_failure_;
  Deadline end_at_{};          // deadline of this process, once it has failed
  bool heard_ = false;         // rank 0 has received the failure
  bool is_the_cause_ = false;  // according to rank 0
  bool leaving_ = false;
  bool farewell_ = false;  // rank 0 has seen all ranks leave
  bool stop_ = false;

  Wake wake_;
  std::thread thread_;
};

}  // namespace titan
