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

class StoreTable {
 public:
  /// Nothing for a get or wait with a missing key.
  std::optional<StoreAnswer> answer(const StoreCall& call);
  /// Waits for missing keys; nothing at the deadline. For rank 0's own threads.
  std::optional<StoreAnswer> wait_answer(const StoreCall& call);
  /// Called, by any thread, after keys have changed; may be empty.
  void on_change(std::function<void()> changed);

 private:
  std::optional<StoreAnswer> try_answer(const StoreCall& call);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> on_change_;
  std::map<std::string, std::string> values_;
};

/// Sends a call to the table; nothing after `within`, or when rank 0 is lost.
using AskStore = std::function<std::optional<StoreAnswer>(StoreCall call)>;

c10::intrusive_ptr<c10d::Store> make_rank_store(AskStore ask);

}  // namespace titan
