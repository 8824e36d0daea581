// Malformed messages in barriers of saves and loads. The rank that receives one continues if it can read it, or fails
// with an exit code of the table that is not 70. TITAN_TEST_FULL=1 tries 4,000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "checkpoint/memory_storage.h"
#include "checkpoint/rank_threads.h"
#include "checkpoint/states.h"
#include "support/mutated_line.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/distributed/rank_check.h"

namespace titan {
namespace {

/// What two ranks do together.
using Act = std::function<void(Storage& storage, std::unique_ptr<RankBarrier> barrier)>;

void save(Storage& storage, std::unique_ptr<RankBarrier> barrier) {
  Checkpointer checkpointer(storage, *barrier, test_options(SaveMode::synchronous, [](const SaveOutcome&) {}));
  checkpointer.save(2, test_state(test_layouts()[1], barrier->rank(), 2));
}

void load(Storage& storage, std::unique_ptr<RankBarrier> barrier) {
  load_together(storage, *barrier, "root", std::nullopt, [](OpenCheckpoint&) {});
}

/// What rank 1 said in a round, and what it heard.
struct Round {
  std::string said, heard;
};

/// Notes each round on rank 0.
class NotedBarrier : public RankBarrier {
 public:
  NotedBarrier(RankBarrier& barrier, std::vector<Round>& rounds) : barrier_(barrier), rounds_(rounds) {}
  int64_t rank() const override { return barrier_.rank(); }
  int64_t size() const override { return barrier_.size(); }
  std::string decide(std::string message, const Decision& decide) override {
    return barrier_.decide(std::move(message), [&](const std::vector<std::string>& messages) {
      const std::string answer = decide(messages);
      rounds_.push_back({messages.at(1), nlohmann::json(answer).dump()});
      return answer;
    });
  }

 private:
  RankBarrier& barrier_;
  std::vector<Round>& rounds_;
};

void save_step_one(MemoryStorage& storage) { save_as_all_ranks(storage, {"root", 1, "run"}, test_layouts()[1], 1); }

/// The rounds in which both ranks do `act`.
std::vector<Round> rounds_of(const Act& act) {
  MemoryStorage storage;
  save_step_one(storage);
  std::vector<Round> rounds;
  run_ranks(2, [&](RankBarrier& barrier) { act(storage, std::make_unique<NotedBarrier>(barrier, rounds)); });
  return rounds;
}

class GarbageWords : public ::testing::TestWithParam<int64_t> {};

TEST_P(GarbageWords, AreAFailureOrAreReadAndAreNeverABug) {
  const int64_t hearer = GetParam(), count = std::getenv("TITAN_TEST_FULL") ? 2000 : 200;
  std::vector<std::pair<Act, std::vector<Round>>> acts;
  for (const Act& act : {Act(save), Act(load)}) acts.emplace_back(act, rounds_of(act));
  std::mt19937 random(static_cast<unsigned>(hearer));
  int64_t peer_failures = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto& [act, rounds] = acts[static_cast<size_t>(i) % acts.size()];
    const size_t spoilt = random() % rounds.size();
    const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
    std::string said;
    for (size_t round = 0; round < rounds.size(); ++round) {
      std::string words = hearer == 0 ? rounds[round].said : rounds[round].heard;
      if (round == spoilt) said = words = mutated(words, random);
      store->set(fmt::format("test/{}/{}", round, hearer == 0 ? "said/1" : "heard"), words);
    }
    MemoryStorage storage;
    save_step_one(storage);
    try {
      act(storage, make_store_barrier(store, "test", hearer, 2, {.timeout = std::chrono::seconds(2)}));
    } catch (const Error& error) {
      EXPECT_TRUE(is_failure_code(static_cast<int>(error.code())) && error.code() != ExitCode::bug)
          << error.what() << " after " << said.substr(0, 300);
      peer_failures += error.code() == ExitCode::peer_failure;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << " after " << said.substr(0, 300);
    }
  }
  EXPECT_GT(peer_failures, count / 4);
}

INSTANTIATE_TEST_SUITE_P(Rank, GarbageWords, ::testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? std::string("Zero") : std::string("One"); });

}  // namespace
}  // namespace titan
