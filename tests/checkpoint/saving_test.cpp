#include "titan/checkpoint/checkpointer.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <mutex>

#include "checkpoint/memory_storage.h"
#include "checkpoint/rank_threads.h"
#include "checkpoint/states.h"
#include "titan/checkpoint/catalogue.h"

namespace titan {
namespace {

class Saving : public ::testing::Test {
 protected:
  Saving() : barrier_(make_lone_barrier()), layout_(test_layouts().front()) {}

  std::unique_ptr<Checkpointer> checkpointer(SaveMode mode, Storage& storage, int64_t most_files = 1) {
    CheckpointerOptions options =
        test_options(mode, [this](const SaveOutcome& outcome) { outcomes_.push_back(outcome); });
    options.most_files = most_files;
    return std::make_unique<Checkpointer>(storage, *barrier_, std::move(options));
  }

  int64_t loaded(Storage& storage) {
    const std::vector<LoadTarget> targets = test_targets(layout_, 0);
    const LoadOutcome outcome = load_together(storage, *barrier_, "root", std::nullopt,
                                              [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    if (outcome.step) {
      EXPECT_TRUE(holds_version(targets, *outcome.step));
    }
    return outcome.step.value_or(-1);
  }

  std::unique_ptr<RankBarrier> barrier_;
  TestLayout layout_;
  std::vector<SaveOutcome> outcomes_;
};

/// Counts the bytes of tensors that this thread makes, as the buffers of a snapshot are.
class AllocationCount : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) made_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }

  /// The bytes that `act` makes.
  static int64_t of(const std::function<void()>& act) {
    const auto count = std::make_shared<AllocationCount>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, count);
    act();
    return count->made_;
  }

 private:
  int64_t made_ = 0;
};

int64_t bytes_of(const CheckpointState& state) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : state.tensors) bytes += static_cast<int64_t>(tensor.local.nbytes());
  return bytes;
}

TEST_F(Saving, ASynchronousSaveIsCommittedWhenItReturnsAndCopiesNothing) {
  MemoryStorage storage;
  const auto checkpointer = this->checkpointer(SaveMode::synchronous, storage);
  const CheckpointState state = test_state(layout_, 0, 10);
  EXPECT_EQ(AllocationCount::of([&] { checkpointer->save(10, state); }), 0);
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].committed) << outcomes_[0].problem;
  EXPECT_EQ(outcomes_[0].folder, "root/step-10");
  EXPECT_EQ(loaded(storage), 10);
}

/// Holds the thread that writes at the storage call of this number until it is let go.
class Gate {
 public:
  Gate(MemoryStorage& storage, int64_t call) : storage_(storage) {
    storage.set_refusal([this, call](const std::string&) {
      if (++calls_ == call) {
        reached_.set_value();
        gone_.wait();
      }
      return 0;
    });
  }
  ~Gate() { storage_.set_refusal({}); }
  /// False when the save, `over`, had fewer calls.
  bool is_reached(const std::future<void>& over) {
    std::future<void> reached = reached_.get_future();
    while (reached.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      if (over.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return false;
    }
    return true;
  }
  void let_go() { go_.set_value(); }

 private:
  MemoryStorage& storage_;
  std::atomic<int64_t> calls_ = 0;
  std::promise<void> reached_, go_;
  std::shared_future<void> gone_ = go_.get_future().share();
};

TEST_F(Saving, AnAsynchronousSaveHoldsWhatTheStateWasWhenItWasCalledWhereverItIsWhenThatChanges) {
  // Of several pieces each, and one that is not as it is written.
  const at::Tensor one = at::arange(700'000, at::kFloat), turned = at::arange(600, at::kFloat).view({20, 30}).t();
  const at::Tensor two = at::arange(400'001, at::kDouble);
  int64_t call = 0, copied = 0, left_alone = 0;
  for (bool over = false; !over;) {
    ++call;
    CheckpointState state;
    for (const auto& [name, tensor] : {std::pair("one", one), std::pair("turned", turned), std::pair("two", two)}) {
      const std::vector<int64_t> shape = tensor.sizes().vec();
      const at::Tensor local = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
      state.tensors.push_back({{name, tensor.scalar_type(), shape}, whole_everywhere(shape), local});
    }
    MemoryStorage storage;
    Gate gate(storage, call);
    std::promise<void> ended;
    const std::future<void> end = ended.get_future();
    Checkpointer checkpointer(storage, *barrier_, test_options(SaveMode::asynchronous, [&](const SaveOutcome& outcome) {
                                EXPECT_TRUE(outcome.committed) << outcome.problem;
                                ended.set_value();
                              }));
    EXPECT_EQ(AllocationCount::of([&] { checkpointer.save(call, state); }), turned.nbytes()) << "what must";
    over = !gate.is_reached(end);
    const int64_t made = AllocationCount::of([&] { checkpointer.detach(); });
    for (StateTensor& tensor : state.tensors) tensor.local.fill_(-1);
    gate.let_go();
    checkpointer.finish();
    (made > 0 ? copied : left_alone) += 1;
    EXPECT_TRUE(made == 0 || made == static_cast<int64_t>(one.nbytes() + two.nbytes())) << "all or nothing";

    std::vector<LoadTarget> targets;
    for (const StateTensor& tensor : state.tensors) {
      const LogicalTensor& logical = tensor.tensor;
      targets.push_back({logical, *whole_everywhere(logical.shape)(0), at::empty(logical.shape, logical.type)});
    }
    load_together(storage, *barrier_, "root", call, [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    EXPECT_TRUE(at::equal(targets[0].into, one)) << "changed at call " << call;
    EXPECT_TRUE(at::equal(targets[1].into, turned)) << "changed at call " << call;
    EXPECT_TRUE(at::equal(targets[2].into, two)) << "changed at call " << call;
  }
  EXPECT_GT(copied, 10);
  EXPECT_GT(left_alone, 5);
}

TEST_F(Saving, BuffersAreMadeOnceAndHoldTheBytesThatThisRankWrites) {
  MemoryStorage storage;
  const auto checkpointer = this->checkpointer(SaveMode::asynchronous, storage);
  for (int64_t step = 1; step <= 100; ++step) {
    const CheckpointState state = test_state(layout_, 0, step);
    Gate gate(storage, 1);  // the state changes before any of it is written
    const int64_t made = AllocationCount::of([&] {
      checkpointer->save(step, state);
      checkpointer->detach();
    });
    EXPECT_EQ(made, step == 1 ? bytes_of(state) : 0) << "at save " << step;
    gate.let_go();
    checkpointer->finish();
    delete_old(storage, "root", {.keep_latest = 2, .keep_every = 0});
  }
  EXPECT_EQ(loaded(storage), 100);
  EXPECT_EQ(storage.list("root").size(), 2u);
}

TEST_F(Saving, NothingIsCopiedWhereEachWriteIsOverBeforeTheStateChanges) {
  MemoryStorage storage;
  const auto checkpointer = this->checkpointer(SaveMode::asynchronous, storage);
  for (int64_t step = 1; step <= 5; ++step) {
    const CheckpointState state = test_state(layout_, 0, step);
    const int64_t made = AllocationCount::of([&] {
      checkpointer->save(step, state);
      checkpointer->finish();
      checkpointer->detach();
    });
    EXPECT_EQ(made, 0);
    EXPECT_EQ(loaded(storage), step);
  }
}

TEST_F(Saving, ASaveThatFailedHoldsNobodyUpAndMakesNoBuffers) {
  MemoryStorage storage;
  storage.set_capacity(1000);
  const auto checkpointer = this->checkpointer(SaveMode::asynchronous, storage);
  const CheckpointState state = test_state(layout_, 0, 10);
  const int64_t made = AllocationCount::of([&] {
    checkpointer->save(10, state);
    checkpointer->finish();
    checkpointer->detach();
  });
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_FALSE(outcomes_[0].committed);
  EXPECT_EQ(made, 0);
}

TEST_F(Saving, ARanksFilesAreWrittenSideBySideAndLoadAsOne) {
  MemoryStorage storage;
  std::promise<void> second_begins;
  std::shared_future<void> begun = second_begins.get_future().share();
  storage.set_refusal([&](const std::string& call) {  // the first file waits for the second
    if (call == "write root/saving-10-run/__0_0.distcp") begun.wait();
    if (call == "create root/saving-10-run/__0_1.distcp") second_begins.set_value();
    return 0;
  });
  const auto checkpointer = this->checkpointer(SaveMode::synchronous, storage, /*most_files=*/3);
  checkpointer->save(10, test_state(layout_, 0, 10));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].committed) << outcomes_[0].problem;
  for (int64_t file = 0; file < 3; ++file) EXPECT_TRUE(storage.files().contains("root/step-10/" + data_file(0, file)));
  EXPECT_EQ(loaded(storage), 10);
}

TEST_F(Saving, OneOfARanksFilesThatFailsFailsTheSaveAndLeavesNothing) {
  MemoryStorage storage;
  storage.set_refusal([](const std::string& call) { return call.ends_with("__0_2.distcp") ? ENOSPC : 0; });
  const auto checkpointer = this->checkpointer(SaveMode::asynchronous, storage, /*most_files=*/3);
  checkpointer->save(10, test_state(layout_, 0, 10));
  checkpointer->finish();
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_FALSE(outcomes_[0].committed);
  EXPECT_NE(outcomes_[0].problem.find("No space left on device"), std::string::npos) << outcomes_[0].problem;
  EXPECT_TRUE(storage.files().empty());
}

TEST_F(Saving, AFailedWriteIsReportedWithItsReasonAndTheNextSaveSucceeds) {
  for (const SaveMode mode : {SaveMode::synchronous, SaveMode::asynchronous}) {
    MemoryStorage storage;
    const auto checkpointer = this->checkpointer(mode, storage);
    outcomes_.clear();
    checkpointer->save(10, test_state(layout_, 0, 10));
    checkpointer->finish();
    storage.set_refusal([](const std::string& call) { return call.starts_with("write root/saving-20") ? EIO : 0; });
    checkpointer->save(20, test_state(layout_, 0, 20));
    checkpointer->finish();
    storage.set_refusal({});
    EXPECT_EQ(loaded(storage), 10);
    checkpointer->save(30, test_state(layout_, 0, 30));
    checkpointer->finish();
    ASSERT_EQ(outcomes_.size(), 3u);
    EXPECT_FALSE(outcomes_[1].committed);
    EXPECT_NE(outcomes_[1].sentence().find("checkpoint 20 was not saved: rank 0: cannot write"), std::string::npos)
        << outcomes_[1].sentence();
    EXPECT_NE(outcomes_[1].sentence().find("Input/output error"), std::string::npos);
    EXPECT_TRUE(outcomes_[2].committed);
    EXPECT_EQ(loaded(storage), 30);
    EXPECT_EQ(storage.list("root").size(), 2u) << "the failed one left nothing";
  }
}

TEST_F(Saving, ADiskWithoutRoomIsNoticedBeforeAnythingIsWritten) {
  MemoryStorage storage;
  storage.set_capacity(1000);
  checkpointer(SaveMode::synchronous, storage)->save(10, test_state(layout_, 0, 10));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_NE(outcomes_[0].problem.find("No space left on device"), std::string::npos) << outcomes_[0].problem;
  EXPECT_TRUE(storage.files().empty());
}

TEST_F(Saving, ASaveWaitsForTheFormerOne) {
  MemoryStorage storage;
  const auto checkpointer = this->checkpointer(SaveMode::asynchronous, storage);
  for (int64_t step = 1; step <= 5; ++step) checkpointer->save(step, test_state(layout_, 0, step));
  checkpointer->finish();
  ASSERT_EQ(outcomes_.size(), 5u);
  for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(outcomes_[static_cast<size_t>(step - 1)].step, step);
}

// ---- Several ranks ----

TEST(SavingTogether, AllRanksCommitOneCheckpointAndAnotherLayoutLoadsIt) {
  const std::vector<TestLayout> layouts = test_layouts();
  const auto storage = make_posix_storage();
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("titan-together-" + std::to_string(::getpid()));
  std::filesystem::remove_all(root);
  const TestLayout &from = layouts[9], &to = layouts[3];
  std::mutex mutex;
  run_ranks(from.ranks, [&](RankBarrier& barrier) {
    CheckpointerOptions options = test_options(SaveMode::asynchronous, [&](const SaveOutcome& outcome) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(outcome.committed) << outcome.problem;
    });
    options.root = root;
    Checkpointer checkpointer(*storage, barrier, options);
    checkpointer.save(3, test_state(from, barrier.rank(), 3));
    checkpointer.finish();
  });
  run_ranks(to.ranks, [&](RankBarrier& barrier) {
    const std::vector<LoadTarget> targets = test_targets(to, barrier.rank());
    const LoadOutcome outcome =
        load_together(*storage, barrier, root, 3, [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    const std::lock_guard lock(mutex);
    EXPECT_EQ(outcome.step, 3);
    EXPECT_TRUE(holds_version(targets, 3)) << "rank " << barrier.rank();
  });
  std::filesystem::remove_all(root);
}

TEST(SavingTogether, AFailureOfOneRankIsTheOutcomeOfAllAndNamesTheRank) {
  const TestLayout layout = test_layouts()[3];  // fsdp3
  // Each rank has its own folder here: what counts is what they tell each other.
  std::vector<MemoryStorage> storages(3);
  for (MemoryStorage& storage : storages) storage.make_folders("root/saving-7-run");
  storages[2].set_refusal([](const std::string& call) { return call.starts_with("sync root/saving") ? EIO : 0; });
  std::mutex mutex;
  std::vector<std::string> problems;
  run_ranks(3, [&](RankBarrier& barrier) {
    const CheckpointerOptions options = test_options(SaveMode::synchronous, [&](const SaveOutcome& outcome) {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(outcome.committed);
      problems.push_back(outcome.problem);
    });
    Checkpointer checkpointer(storages[static_cast<size_t>(barrier.rank())], barrier, options);
    checkpointer.save(7, test_state(layout, barrier.rank(), 7));
  });
  ASSERT_EQ(problems.size(), 3u);
  for (const std::string& problem : problems) {
    EXPECT_EQ(problem, problems[0]);
    EXPECT_NE(problem.find("rank 2: "), std::string::npos) << problem;
  }
}

TEST(LoadingTogether, ABlockThatIsDamagedForOneRankSendsAllToTheOlderCheckpoint) {
  const TestLayout layout = test_layouts()[4];  // fsdp4
  MemoryStorage storage;
  for (const int64_t step : {1, 2}) save_as_all_ranks(storage, {"root", step, "run"}, layout, step);
  storage.damage("root/step-2/__3_0.distcp", [](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; });
  std::mutex mutex;
  run_ranks(layout.ranks, [&](RankBarrier& barrier) {
    // Only what is cut: all ranks read the step's number, wherever it lies.
    std::vector<LoadTarget> targets = test_targets(layout, barrier.rank());
    std::erase_if(targets, [](const LoadTarget& target) { return target.tensor.shape.empty(); });
    // One storage for each: the one in memory is no place for threads.
    std::unique_ptr<MemoryStorage> mine;
    {
      const std::lock_guard lock(mutex);
      mine = storage.copy();
    }
    const LoadOutcome outcome = load_together(*mine, barrier, "root", std::nullopt,
                                              [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    const std::lock_guard lock(mutex);
    EXPECT_EQ(outcome.step, 1);
    EXPECT_NE(outcome.line.find("(rank 3)"), std::string::npos) << outcome.line;
    EXPECT_TRUE(holds_version(targets, 1));
  });
}

TEST(LoadingTogether, AnEmptyFolderIsAFreshStartAndAMissingStepAnError) {
  MemoryStorage storage;
  const auto barrier = make_lone_barrier();
  const auto never = [](OpenCheckpoint&) { FAIL(); };
  const LoadOutcome outcome = load_together(storage, *barrier, "root", std::nullopt, never);
  EXPECT_FALSE(outcome.step);
  EXPECT_EQ(outcome.line, "LOAD: nothing: root holds no checkpoint; starting fresh");
  save_as_all_ranks(storage, {"root", 1, "run"}, test_layouts()[0], 1);
  try {
    load_together(storage, *barrier, "root", 2, never);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_STREQ(error.what(),
                 "root holds no checkpoint of step 2; name one that is there in checkpoint.load_step (1), or leave it "
                 "out for the newest");
  }
}

TEST(LoadingTogether, ACheckpointOfAnotherModelIsAnErrorThatNamesTheTensorAndChangesNothing) {
  MemoryStorage storage;
  const TestLayout layout = test_layouts()[0];
  for (const int64_t step : {1, 2}) save_as_all_ranks(storage, {"root", step, "run"}, layout, step);
  const auto before = storage.files();
  std::vector<LoadTarget> targets = test_targets(layout, 0);
  targets[0].tensor.shape = targets[0].box.extent = {13, 9};
  targets[0].into = at::zeros({13, 9}, at::kBFloat16);
  const auto barrier = make_lone_barrier();
  try {
    load_together(storage, *barrier, "root", std::nullopt,
                  [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_STREQ(error.what(),
                 "root/step-2 does not fit this run: its tok_embeddings.weight has shape [13, 8], this model's has "
                 "[13, 9]");
  }
  EXPECT_EQ(storage.files(), before);
}

}  // namespace
}  // namespace titan
