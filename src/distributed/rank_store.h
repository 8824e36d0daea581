// The run's key-value store (c10d::Store): a table in rank 0's process, which the other ranks call over their channels
// to rank 0. It has no listening socket, so only ranks of the run can use it. Every wait has a deadline.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace titan {

/// One call of a store.
struct StoreCall {
  enum class Kind { set, get, wait, add, check, erase, count, compare_set };
  Kind kind = Kind::count;
  std::vector<std::string> keys{};
  std::vector<std::string> values{};    ///< of set; of compare_set: expected and new value
  int64_t number = 0;                   ///< added by add
  std::chrono::milliseconds within{0};  ///< timeout of the call
  int64_t id = 0;                       ///< number of the call on its rank; the answer has the same id
};

struct StoreAnswer {
  std::string value{};
  int64_t number = 0;
  int64_t id = 0;
};

/// A call of another rank that waits for keys.
struct WaitingCall {
  size_t caller = 0;
  StoreCall call;
  std::chrono::steady_clock::time_point until;
};

class StoreTable {
 public:
  /// Answers the call, or returns nothing if it is a get or wait with a missing key: then it is kept until that key is
  /// set.
  std::optional<StoreAnswer> answer_or_keep(const WaitingCall& call);
  /// The kept calls of which a key has been set; each is to be answered again.
  std::vector<WaitingCall> take_ready();
  /// Waits for missing keys and returns nothing at the deadline. Rank 0's own threads call it.
  std::optional<StoreAnswer> wait_answer(const StoreCall& call);
  /// Called, by any thread, when take_ready() has something to return; may be empty.
  void on_ready(std::function<void()> ready);

 private:
  std::optional<StoreAnswer> answer(const StoreCall& call);
  std::optional<StoreAnswer> try_answer(const StoreCall& call);
  std::string missing_key(const StoreCall& call) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> on_ready_;
  std::map<std::string, std::string> values_;
  // By missing key and caller: a change costs as much as the calls that wait for its key, not as all that wait.
  std::map<std::string, std::map<size_t, std::vector<WaitingCall>>> kept_;
  std::vector<WaitingCall> ready_;
};

/// Sends a call to the table; nothing after `within`, or when rank 0 is lost.
using AskStore = std::function<std::optional<StoreAnswer>(StoreCall call)>;

c10::intrusive_ptr<c10d::Store> make_rank_store(AskStore ask);

}  // namespace titan
