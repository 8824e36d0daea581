// The side of every rank but 0 of the run's channels: calls rank 0, then keeps the line and watches it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "channel.h"
#include "ending.h"
#include "life_question.h"
#include "rank_messages.h"
#include "titan/base/last_words.h"
#include "titan/distributed/abort_watcher.h"
#include "titan/distributed/peer_waits.h"

namespace titan {

class RankLink : public AbortWatcher {
 public:
  /// `waits`: what this rank answers from when it is asked whom it waits for; `last_words`: what is said when another
  /// rank's failure ends it, null: nothing.
  RankLink(RankFacts facts, PeerFailed tell, std::shared_ptr<PeerWaits> waits, std::shared_ptr<LastWords> last_words);
  ~RankLink() override;

  /// Finds rank 0 of run `run` on the first of `ports` where it answers. Throws Error(launcher) at the deadline.
  void call(const std::string& host, const std::vector<uint16_t>& ports, const std::string& run, Deadline deadline);
  /// Waits until rank 0 has gathered all, and begins to watch. Throws RefusedByRankZero, with the exit code of this
  /// rank's own problem when it has one, or Error when rank 0 is gone.
  Welcome join(Deadline deadline);

  bool fail(int code, const std::string& text) override;
  std::vector<int64_t> leave(std::chrono::seconds limit) override;

 private:
  void watch();
  void hear();
  void rank_zero_is_gone();
  void say_last_words() const;
  /// It does not answer, although the connection stands. `aloud`: this rank tells the user.
  [[noreturn]] void rank_zero_is_silent(const std::string& text, bool aloud);
  /// Has all ranks asked when this one waits for one that may work for long; ends the run when not even rank 0 answers.
  void look_for_life();

  RankFacts facts_;
  bool witness_ = false;  // speaks up when rank 0 is lost
  PeerFailed tell_;
  std::shared_ptr<PeerWaits> waits_;
  std::shared_ptr<LastWords> last_words_;
  Channel channel_;
  std::string rank_zero_;  // its name, as far as it is known

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Refusal> own_failure_;
  Deadline end_at_{};  // of the process, once it has failed
  bool heard_ = false;
  bool is_the_cause_ = false;
  bool leaving_ = false;
  bool farewell_ = false;
  bool stop_ = false;
  // Of the link's thread.
  bool is_alone_ = false;  // rank 0 is gone, and this rank has said so
  LifeQuestion life_;      // to rank 0

  Wake wake_;
  std::thread thread_;
};

}  // namespace titan
