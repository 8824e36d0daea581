// Checkpoints whose files are changed, gone, unreadable or under another name: the next start sees it, says it, and
// loads what is whole.
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/saved_twice.h"

namespace titan {
namespace {

class Damage : public SavedTwice {
 protected:
  void SetUp() override {
    SavedTwice::SetUp();
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

  /// Why the next start ends, which it must.
  std::string refusal() {
    try {
      start(storage_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      return error.what();
    }
    ADD_FAILURE() << "started";
    return {};
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
  const std::string text = refusal();
  EXPECT_NE(text.find("step 30 is damaged"), std::string::npos) << text;
  EXPECT_NE(text.find("step 20 is damaged"), std::string::npos) << text;
  EXPECT_EQ(storage_.files(), before);
}

TEST_F(Damage, ACheckpointThatIsOfNoUseIsPassedOverAndLeftAlone) {
  const auto barrier = make_lone_barrier();
  const auto before = storage_.files();
  const auto only_20 = [](OpenCheckpoint& checkpoint) {
    if (checkpoint.folder().filename() != "step-20") throw UnsuitableError("is not what the test wants");
  };
  const LoadOutcome outcome = load_together(storage_, *barrier, "root", std::nullopt, only_20);
  EXPECT_EQ(outcome.step, 20);
  EXPECT_NE(outcome.line.find("; step 30 is not what the test wants"), std::string::npos) << outcome.line;
  EXPECT_EQ(storage_.files(), before);
  EXPECT_THROW(load_together(storage_, *barrier, "root", 30, only_20), Error);
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
      const std::string text = refusal();
      EXPECT_TRUE(text.starts_with("root/step-30 may not be read by this user: cannot ")) << text;
      EXPECT_NE(text.find("checkpoint.load_step"), std::string::npos) << text;
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
  EXPECT_NE(line.find("; step 900 is damaged: it holds step 20, not the step in its name"), std::string::npos) << line;
  EXPECT_NE(line.find("rename it to step-20"), std::string::npos) << line;
  EXPECT_FALSE(storage_.list("root/damaged-900").empty());
  EXPECT_EQ(start(storage_), 30);
}

TEST_F(Damage, StepsAfterALimitArePassedOverUnlessOneIsAskedFor) {
  const auto before = storage_.files();
  const auto load = [&](std::optional<int64_t> step, int64_t last) {
    const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
    return load_together(storage_, *make_lone_barrier(), "root", step, all, /*only_reads=*/false, nullptr,
                         {.last = last, .why = "the test does not want it"});
  };
  const LoadOutcome limited = load(std::nullopt, 29);
  EXPECT_EQ(limited.step, 20);
  EXPECT_TRUE(limited.line.ends_with("; step 30 is passed over: the test does not want it")) << limited.line;
  EXPECT_EQ(load(std::nullopt, 30).step, 30);
  EXPECT_EQ(load(std::nullopt, 30).line.find("passed over"), std::string::npos);
  EXPECT_EQ(load(30, 29).step, 30);
  const LoadOutcome nothing = load(std::nullopt, 3);
  EXPECT_FALSE(nothing.step);
  EXPECT_TRUE(
      nothing.line.starts_with("LOAD: nothing: root holds no other checkpoint; starting fresh; steps 20 and 30 are "))
      << nothing.line;
  EXPECT_EQ(storage_.files(), before);
}

TEST_F(Damage, AnyCheckpointMayBeTheSeed) {
  storage_.remove_folder("root/step-20");
  storage_.rename("root/step-30", "root/step-0");
  const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
  EXPECT_EQ(load_together(storage_, *make_lone_barrier(), "root", std::nullopt, all).step, 0);
}

TEST_F(Damage, WhoOnlyReadsLeavesADamagedOneWhereItIs) {
  storage_.damage("root/step-30/__1_0.distcp", [](std::string& bytes) { bytes[100] ^= 4; });
  const auto before = storage_.files();
  const auto load = [&](bool only_reads) {
    const auto all = [](OpenCheckpoint& checkpoint) { checkpoint.check_all(); };
    return load_together(storage_, *make_lone_barrier(), "root", std::nullopt, all, only_reads).step;
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
    load_together(storage_, *make_lone_barrier(), "root", 30, all);
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
