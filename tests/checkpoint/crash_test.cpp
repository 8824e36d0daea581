// A save that ends anywhere: the machine stops after any storage call, a call fails, the disk is full, a file is
// changed. What is left always loads, as the step that was being saved or the one before, bit for bit.
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/saved_twice.h"
#include "titan/checkpoint/checkpointer.h"

namespace titan {
namespace {

/// What a crash may leave: nothing, everything, and some halves.
std::vector<Surviving> survivings(uint64_t halves) {
  std::vector<Surviving> all{{Surviving::Kind::none, 0}, {Surviving::Kind::all, 0}};
  for (uint64_t seed = 0; seed < halves; ++seed) all.push_back({Surviving::Kind::half, seed});
  return all;
}

/// Whether the machine stopped while `act` ran.
bool stops(const std::function<void()>& act) {
  try {
    act();
  } catch (const MachineStopped&) {
    return true;
  }
  return false;
}

class Crash : public SavedTwice {};

TEST_F(Crash, AfterEverySingleStorageCallOfASaveTheNextStartLoadsThatStepOrTheOneBefore) {
  int64_t calls = 0, loaded_new = 0, loaded_old = 0;
  for (bool done = false; !done; ++calls) {
    for (const Surviving& surviving : survivings(/*halves=*/6)) {
      const std::unique_ptr<MemoryStorage> storage = storage_.copy();
      storage->limit_writes(4096);
      storage->stop_after(calls + 1);
      done = !stops([&] { save(*storage, 30); });
      const std::string last = storage->journal().back();
      storage->restart(surviving);
      const int64_t step = start(*storage);
      ASSERT_TRUE(step == 20 || step == 30) << step << " after call " << calls + 1 << ", " << last;
      (step == 30 ? loaded_new : loaded_old) += 1;
      // And the run goes on: what is left is in nobody's way.
      save(*storage, 40);
      ASSERT_EQ(start(*storage), 40) << "after call " << calls + 1 << ", " << last;
    }
  }
  EXPECT_GT(calls, 40);
  EXPECT_GT(loaded_new, 20);
  EXPECT_GT(loaded_old, 20);
}

TEST_F(Crash, AfterEverySingleCallOfAnAsynchronousSaveTooAndOfTheStartThatFollows) {
  // One rank, from the checkpointer down to the deletion of old ones; then the machine stops again while the next start
  // cleans up, after every one of its calls.
  layout_ = test_layouts().front();
  const auto barrier = make_lone_barrier();
  const auto save_by_checkpointer = [&](Storage& storage, int64_t step) {
    const auto after = [&](const SaveOutcome& outcome) {
      EXPECT_TRUE(outcome.committed) << outcome.problem;
      delete_old(storage, "root", kRetention);
    };
    CheckpointerOptions options = test_options(SaveMode::asynchronous, after);
    options.most_files = 1;
    Checkpointer checkpointer(storage, *barrier, options);
    checkpointer.save(step, test_state(layout_, 0, step));
    checkpointer.finish();
  };
  MemoryStorage base;
  for (const int64_t step : {10, 20}) save_by_checkpointer(base, step);
  bool done = false;
  int64_t starts = 0;
  for (int64_t call = 1; !done; ++call) {
    for (const Surviving& surviving : survivings(/*halves=*/2)) {
      const std::unique_ptr<MemoryStorage> left = base.copy();
      left->stop_after(call);
      done = !stops([&] { save_by_checkpointer(*left, 30); });
      left->restart(surviving);
      bool started = false;
      for (int64_t later = 1; !started; ++later, ++starts) {
        const std::unique_ptr<MemoryStorage> storage = left->copy();
        storage->stop_after(later);
        started = !stops([&] { start(*storage); });
        storage->restart(surviving);
        const int64_t step = start(*storage);
        ASSERT_TRUE(step == 20 || step == 30) << step << " after calls " << call << " and " << later;
      }
    }
  }
  EXPECT_GT(starts, 1000);
}

TEST_F(Crash, ASaveThatReturnedIsThereHoweverMuchIsDropped) {
  save(storage_, 30);
  storage_.restart({Surviving::Kind::none, 0});
  EXPECT_EQ(start(storage_), 30);
}

TEST_F(Crash, TheFirstSaveOfAllIsThereToo) {
  // Neither the folder of all checkpoints nor the one that it is in was there, or one was and is not on the medium.
  const std::filesystem::path root = "dump/checkpoint";
  for (const bool made_before : {false, true}) {
    MemoryStorage storage;
    if (made_before) storage.make_folders("dump");
    save_as_all_ranks(storage, {root, 10, "run"}, layout_, 10);
    storage.restart({Surviving::Kind::none, 0});
    const std::vector<FoundCheckpoint> found = find_checkpoints(storage, root);
    ASSERT_EQ(found.size(), 1u) << made_before;
    EXPECT_EQ(found.front().step, 10);
  }
}

TEST_F(Crash, WhileASaveReplacesACheckpointOfTheSameStepOneOfThemIsAlwaysThere) {
  // Step 20 is saved again, so that losing both would leave step 10 alone.
  bool done = false;
  for (int64_t call = 1; !done; ++call) {
    for (const Surviving& surviving : survivings(/*halves=*/4)) {
      const std::unique_ptr<MemoryStorage> storage = storage_.copy();
      storage->stop_after(call);
      done = !stops([&] { save_as_all_ranks(*storage, {"root", 20, "later"}, layout_, 20); });
      storage->restart(surviving);
      ASSERT_EQ(start(*storage), 20) << "after call " << call;
    }
  }
}

TEST_F(Crash, WhenAnyCallFailsOnceOrFromThenOnTheRunGoesOnAndTheNextSaveSucceeds) {
  constexpr int64_t kAll = int64_t{1} << 40;
  bool done = false;
  for (int64_t call = 1; !done; ++call) {
    for (const auto& [reason, times] :
         std::vector<std::pair<int, int64_t>>{{EIO, 1}, {ENOSPC, 1}, {EIO, kAll}, {ENOSPC, kAll}}) {
      const std::unique_ptr<MemoryStorage> storage = storage_.copy();
      storage->limit_writes(4096);
      storage->fail_at(call, reason, times);
      bool failed = false;
      try {
        save(*storage, 30);
      } catch (const StorageError& error) {
        EXPECT_EQ(error.reason(), reason);
        abandon_save(*storage, {"root", 30, "run30"});
        failed = true;
      }
      done = !failed && storage->calls() < call;
      storage->fail_at(0, 0, 0);
      // A failure after the rename leaves the new one; whatever is left is whole.
      const int64_t step = start(*storage);
      ASSERT_TRUE(step == 30 || (failed && step == 20)) << "after call " << call;
      save(*storage, 40);
      ASSERT_EQ(start(*storage), 40) << "after call " << call;
    }
  }
}

TEST_F(Crash, ADiskThatSomebodyElseFillsMeanwhileEndsTheSaveInAShortWriteAndNothingOfItStays) {
  const auto before = storage_.files();
  int64_t failures = 0;
  for (int64_t capacity = 0;; capacity += 257) {
    const std::unique_ptr<MemoryStorage> storage = storage_.copy();
    storage->promise_space(int64_t{1} << 40);
    storage->set_capacity(capacity);
    try {
      save_as_all_ranks(*storage, {"root", 30, "run"}, layout_, 30);
      break;  // it fits
    } catch (const StorageError& error) {
      ++failures;
      EXPECT_EQ(error.reason(), ENOSPC);
      abandon_save(*storage, {"root", 30, "run"});
    }
    ASSERT_EQ(storage->files(), before) << capacity;
    storage->set_capacity(int64_t{1} << 40);
    save(*storage, 40);
    ASSERT_EQ(start(*storage), 40) << capacity;
  }
  EXPECT_GT(failures, 50);
}

TEST_F(Crash, ADiskThatHasNoRoomIsNoticedBeforeAnythingIsWritten) {
  for (int64_t capacity = 0; capacity < 60000; capacity += 3001) {
    const std::unique_ptr<MemoryStorage> storage = storage_.copy();
    const auto before = storage->files();
    storage->set_capacity(capacity);
    try {
      begin_save(*storage, {"root", 30, "run"}, 0);
      FAIL() << "a disk with " << capacity << " bytes was taken for large enough";
    } catch (const StorageError& error) {
      EXPECT_EQ(error.reason(), ENOSPC);
    }
    EXPECT_EQ(storage->files(), before);
  }
}

}  // namespace
}  // namespace titan
