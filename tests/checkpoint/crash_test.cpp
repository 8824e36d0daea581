// A save that ends anywhere: the machine stops after any storage call, a call fails, the disk is full, a file is
// changed. What is left always loads, as the step that was being saved or the one before, bit for bit.
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/saver.h"

namespace titan {
namespace {

const Retention kRetention{.keep_latest = 2, .keep_every = 0};

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

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const TestLayout& layout : test_layouts()) {
      if (layout.name == "fsdp2") layout_ = layout;
    }
    save(storage_, 10);
    save(storage_, 20);
    storage_.restart({Surviving::Kind::none, 0});  // all of it is on the medium
    ASSERT_EQ(find_checkpoints(storage_, "root").size(), 2u);
  }

  /// What a run does about one checkpoint: all ranks write, it is committed, old ones go.
  void save(Storage& storage, int64_t step) const {
    save_as_all_ranks(storage, {"root", step, "run" + std::to_string(step)}, layout_, step);
    delete_old(storage, "root", kRetention);
  }

  /// What the next start does; the step whose state all ranks then hold.
  int64_t start(Storage& storage, std::string* line = nullptr) const {
    clean_leftovers(storage, "root");
    std::vector<std::vector<LoadTarget>> targets;
    for (int64_t rank = 0; rank < layout_.ranks; ++rank) targets.push_back(test_targets(layout_, rank));
    const auto meeting = make_lone_meeting();
    const LoadOutcome outcome = load_together(storage, *meeting, "root", std::nullopt, [&](OpenCheckpoint& checkpoint) {
      for (const std::vector<LoadTarget>& mine : targets) checkpoint.load(mine);
    });
    if (line) *line = outcome.line;
    for (const std::vector<LoadTarget>& mine : targets) EXPECT_TRUE(holds_version(mine, outcome.step.value_or(-1)));
    return outcome.step.value_or(-1);
  }

  TestLayout layout_;
  MemoryStorage storage_;
};

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
  // One rank, from the saver down to the deletion of old ones; then the machine stops again while the next start cleans
  // up, after every one of its calls.
  layout_ = test_layouts().front();
  const auto meeting = make_lone_meeting();
  const auto save_by_saver = [&](Storage& storage, int64_t step) {
    const auto after = [&](const SaveOutcome& outcome) {
      EXPECT_TRUE(outcome.committed) << outcome.problem;
      delete_old(storage, "root", kRetention);
    };
    Saver saver(storage, *meeting, {"root", "run", SaveMode::asynchronous, FileSplit()}, after);
    saver.save(step, test_state(layout_, 0, step));
    saver.finish();
  };
  MemoryStorage base;
  for (const int64_t step : {10, 20}) save_by_saver(base, step);
  bool done = false;
  int64_t starts = 0;
  for (int64_t call = 1; !done; ++call) {
    for (const Surviving& surviving : survivings(/*halves=*/2)) {
      const std::unique_ptr<MemoryStorage> left = base.copy();
      left->stop_after(call);
      done = !stops([&] { save_by_saver(*left, 30); });
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
  // Neither the folder of all checkpoints nor the one that it lies in was there, or one was and is not on the medium.
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

// ---- Damage ----

class Damage : public Crash {
 protected:
  void SetUp() override {
    Crash::SetUp();
    save(storage_, 30);
    ASSERT_EQ(start(storage_), 30);
  }

  /// Every start with this change must say so and load step 20.
  void expect_detected(const std::string& file, const std::function<void(std::string&)>& change,
                       const std::string& what) {
    const std::unique_ptr<MemoryStorage> storage = storage_.copy();
    storage->damage(file, change);
    expect_fallback(*storage, what);
  }

  void expect_fallback(MemoryStorage& storage, const std::string& what) {
    std::string line;
    ASSERT_EQ(start(storage, &line), 20) << what;
    EXPECT_NE(line.find("LOAD: step 20 from root/step-20 (verified"), std::string::npos) << line;
    EXPECT_NE(line.find("step 30 is damaged"), std::string::npos) << line;
    const std::vector<StorageEntry> entries = storage.list("root");
    EXPECT_EQ(entries.front().name, "damaged-30") << what;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : storage_.files()) {
      if (name.starts_with("root/step-30/")) names.push_back(name);
    }
    return names;
  }
};

TEST_F(Damage, OneFlippedBitInAnyFileIsDetected) {
  ASSERT_EQ(files().size(), 6u);  // two of each rank, index, manifest
  for (const std::string& file : files()) {
    const size_t size = storage_.files().at(file).size();
    const size_t stride = std::max<size_t>(1, size / 397);
    for (size_t place = 0; place < size; place += stride) {
      const auto flip = [&](std::string& bytes) {
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << (place % 8)));
      };
      expect_detected(file, flip, file + " byte " + std::to_string(place));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Damage, EveryFlippedBitAndEveryTruncationOfTheManifestIsDetected) {
  // Nothing else holds the manifest's hash: its own last member does.
  std::string bytes = storage_.read_all("root/step-30/manifest.json");
  EXPECT_NO_THROW(read_manifest(bytes));
  for (size_t place = 0; place < bytes.size(); ++place) {
    EXPECT_THROW(read_manifest(std::string_view(bytes).substr(0, place)), DamageError) << place;
    for (int bit = 0; bit < 8; ++bit) {
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
      EXPECT_THROW(read_manifest(bytes), DamageError) << "bit " << bit << " of byte " << place;
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
    }
  }
}

TEST_F(Damage, ATruncatedOrLengthenedFileIsDetected) {
  for (const std::string& file : files()) {
    const size_t size = storage_.files().at(file).size();
    for (const size_t left : {size - 1, size / 2, size_t{1}, size_t{0}}) {
      expect_detected(
          file, [&](std::string& bytes) { bytes.resize(left); }, file + " cut to " + std::to_string(left));
    }
    expect_detected(
        file, [](std::string& bytes) { bytes += '\0'; }, file + " with a byte more");
  }
}

TEST_F(Damage, AMissingFileIsDetected) {
  for (const std::string& file : files()) {
    const std::unique_ptr<MemoryStorage> storage = storage_.copy();
    storage->remove(file);
    expect_fallback(*storage, file + " missing");
  }
}

TEST_F(Damage, AFolderAsPythonWritesThemIsLoadedAndCalledUnverified) {
  storage_.remove("root/step-30/manifest.json");
  storage_.damage("root/step-30/.metadata", [](std::string& bytes) {
    CheckpointIndex index = read_index(bytes);
    index.has_manifest = false;
    bytes = write_index(index);
  });
  std::string line;
  EXPECT_EQ(start(storage_, &line), 30);
  EXPECT_NE(line.find("step-30 (unverified"), std::string::npos) << line;
  // A chunk that does not lie inside its file is seen without a manifest, too.
  storage_.damage("root/step-30/__1_0.distcp", [](std::string& bytes) { bytes.pop_back(); });
  expect_fallback(storage_, "an unverified one cut short");
}

TEST_F(Damage, TwoDamagedCheckpointsOfOneStepAreBothKept) {
  for (const char* name : {"damaged-30", "damaged-30.2"}) {
    storage_.damage("root/step-30/.metadata", [](std::string& bytes) { bytes[5] ^= 1; });
    ASSERT_EQ(start(storage_), 20);
    EXPECT_FALSE(storage_.list(std::filesystem::path("root") / name).empty());
    save(storage_, 30);
  }
}

TEST_F(Damage, WhenNoneIsWholeNothingIsLoadedAndNothingOnDiskChanges) {
  for (const char* step : {"20", "30"}) {
    storage_.damage("root/step-" + std::string(step) + "/__1_0.distcp", [](std::string& bytes) { bytes[100] ^= 4; });
  }
  const auto before = storage_.files();
  try {
    start(storage_);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    const std::string text = error.what();
    EXPECT_NE(text.find("step 30 is damaged"), std::string::npos) << text;
    EXPECT_NE(text.find("step 20 is damaged"), std::string::npos) << text;
  }
  EXPECT_EQ(storage_.files(), before);
}

TEST_F(Damage, ACheckpointThatIsOfNoUseIsPassedOverAndLeftAlone) {
  const auto meeting = make_lone_meeting();
  const auto before = storage_.files();
  const auto only_20 = [](OpenCheckpoint& checkpoint) {
    if (checkpoint.folder().filename() != "step-20") throw UnsuitableError("is not what the test wants");
  };
  const LoadOutcome outcome = load_together(storage_, *meeting, "root", std::nullopt, only_20);
  EXPECT_EQ(outcome.step, 20);
  EXPECT_NE(outcome.line.find("; step 30 is not what the test wants"), std::string::npos) << outcome.line;
  EXPECT_EQ(storage_.files(), before);
  EXPECT_THROW(load_together(storage_, *meeting, "root", 30, only_20), Error);
}

TEST_F(Damage, AnUnreadableCheckpointIsPassedOverAndNotSetAside) {
  for (const char* refused : {"read root/step-30/__1_0.distcp", "list root/step-30"}) {
    storage_.set_refusal([&](const std::string& call) {
      const bool opens = std::string_view(refused).starts_with("list") && call.starts_with("open root/step-30/");
      return call == refused || opens ? EIO : 0;
    });
    std::string line;
    EXPECT_EQ(start(storage_, &line), 20) << refused;
    EXPECT_NE(line.find("step 30 is unreadable"), std::string::npos) << line;
    storage_.set_refusal({});
    EXPECT_EQ(start(storage_), 30);
  }
}

TEST_F(Damage, ACheckpointThatMayNotBeReadEndsTheStartAndCostsNoSteps) {
  for (const char* refused : {"open root/step-30/manifest.json", "open root/step-30/__1_0.distcp"}) {
    for (const int reason : {EACCES, EPERM}) {
      const auto before = storage_.files();
      storage_.set_refusal([&](const std::string& call) { return call == refused ? reason : 0; });
      try {
        start(storage_);
        FAIL() << "started";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::storage);
        const std::string text = error.what();
        EXPECT_TRUE(text.starts_with("root/step-30 may not be read by this user: cannot ")) << text;
        EXPECT_NE(text.find("checkpoint.load_step"), std::string::npos) << text;
      }
      storage_.set_refusal({});
      EXPECT_EQ(storage_.files(), before);
      EXPECT_EQ(start(storage_), 30);
    }
  }
}

TEST_F(Damage, AFolderUnderAnotherStepsNameIsSetAsideAndTheRightOneLoaded) {
  storage_.rename("root/step-20", "root/step-900");
  std::string line;
  EXPECT_EQ(start(storage_, &line), 30) << line;
  EXPECT_NE(line.find("; step 900 is damaged: it holds step 20, whatever its name says"), std::string::npos) << line;
  EXPECT_NE(line.find("give it back the name step-20"), std::string::npos) << line;
  EXPECT_FALSE(storage_.list("root/damaged-900").empty());
  EXPECT_EQ(start(storage_), 30);
}

TEST_F(Damage, AnyCheckpointMayBeTheSeed) {
  storage_.remove_folder("root/step-20");
  storage_.rename("root/step-30", "root/step-0");
  const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
  EXPECT_EQ(load_together(storage_, *make_lone_meeting(), "root", std::nullopt, all).step, 0);
}

TEST_F(Damage, WhoOnlyReadsLeavesADamagedOneWhereItIs) {
  storage_.damage("root/step-30/__1_0.distcp", [](std::string& bytes) { bytes[100] ^= 4; });
  const auto before = storage_.files();
  const auto load = [&](bool only_reads) {
    const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
    return load_together(storage_, *make_lone_meeting(), "root", std::nullopt, all, only_reads).step;
  };
  EXPECT_EQ(load(/*only_reads=*/true), 20);
  EXPECT_EQ(storage_.files(), before);
  EXPECT_EQ(load(/*only_reads=*/false), 20);
  EXPECT_NE(storage_.files(), before);
}

TEST_F(Damage, ADamagedOneThatWasAskedForIsAnErrorThatSaysWhatElseToAskFor) {
  storage_.damage("root/step-30/__1_0.distcp", [](std::string& bytes) { bytes[100] ^= 4; });
  const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
  try {
    load_together(storage_, *make_lone_meeting(), "root", 30, all);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("name another in checkpoint.load_step"), std::string::npos);
  }
}

TEST_F(Damage, AStartWhoseAnyCallFailsLoadsARightStateOrSaysWhyAndCostsNoCheckpoint) {
  int64_t older = 0, refused = 0;
  bool done = false;
  for (int64_t call = 1; !done; ++call) {
    const std::unique_ptr<MemoryStorage> storage = storage_.copy();
    storage->fail_at(call, EIO);
    try {
      const int64_t step = start(*storage);
      ASSERT_TRUE(step == 20 || step == 30) << step << " when call " << call << " fails";
      older += step == 20;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage) << error.what();
      ++refused;
    }
    done = storage->calls() < call;
    storage->fail_at(0, 0, 0);
    ASSERT_EQ(start(*storage), 30) << "after call " << call << " failed";
  }
  EXPECT_GT(older, 5);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace titan
