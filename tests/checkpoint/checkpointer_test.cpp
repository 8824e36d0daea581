#include "titan/checkpoint/checkpointer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"
#include "support/files.h"
#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/load.h"

namespace titan {
namespace {

std::vector<int64_t> steps_in(Storage& storage, const std::filesystem::path& root = "root") {
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& found : find_checkpoints(storage, root)) steps.push_back(found.step);
  return steps;
}

// ---- Which checkpoints stay ----

class Catalogue : public ::testing::Test {
 protected:
  void save(int64_t step) { save_as_all_ranks(storage_, {"root", step, "run"}, test_layouts()[0], step); }
  /// As if Python had written it.
  void save_unverified(int64_t step) {
    save(step);
    storage_.remove(std::filesystem::path("root") / step_folder(step) / kManifestFile);
  }
  MemoryStorage storage_;
};

TEST_F(Catalogue, OnlyFoldersNamedStepNWithAManifestOrAnIndexAreCheckpoints) {
  for (const char* folder :
       {"step-", "step-1x", "step--1", "step-007", "xstep-1", "step-3", "damaged-4", "saving-5-run"}) {
    storage_.make_folders(std::filesystem::path("root") / folder);
  }
  storage_.write_all("root/step-6", "a file");
  save(9);
  save(10);
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{10, 9}));
}

TEST_F(Catalogue, TheLatestStayAndThoseAtMultiples) {
  for (const int64_t step : {5, 10, 15, 20, 25, 30, 35}) save(step);
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 10}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{35, 30, 20, 10}));
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 0, .keep_every = 0}).empty());
  EXPECT_EQ(steps_in(storage_).size(), 4u) << "0 keeps all";
}

TEST_F(Catalogue, TheNewestVerifiedOneIsNeverDeleted) {
  for (const int64_t step : {10, 20}) save(step);
  for (const int64_t step : {30, 40, 50}) save_unverified(step);
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{50, 40, 20}));
}

TEST_F(Catalogue, LaterStepsOfARunThatWentBackStayUntilItReachesThem) {
  for (const int64_t step : {5, 10, 15, 20, 80, 90}) save(step);
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}, /*newest=*/20).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{90, 80, 20, 15})) << "the one just saved above all";
}

TEST_F(Catalogue, AFinishedRunsModelAloneIsNeitherCountedNorDeleted) {
  for (const int64_t step : {3, 4, 5, 6}) save(step);
  for (const int64_t step : {4, 5}) {
    const std::filesystem::path file = std::filesystem::path("root") / step_folder(step) / kManifestFile;
    Manifest manifest = read_manifest(storage_.read_all(file));
    manifest.facts[kModelAlone] = true;
    storage_.remove(file);
    storage_.write_all(file, write_manifest(manifest));
  }
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{6, 5, 4, 3}));
  save(7);
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{7, 6, 5, 4}));
}

TEST_F(Catalogue, TheNewestTrustedStepIsKeptBesideTheLatest) {
  for (const int64_t step : {2, 4, 6, 8, 10}) save(step);
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .trusted = 5}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{10, 8, 4}));
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .trusted = 9}).empty());
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{10, 8}));
}

TEST_F(Catalogue, StepsAfterTheOneThatARunWentBackToAreCheckpointsNoMore) {
  for (const int64_t step : {2, 4, 6}) save(step);
  const auto files = storage_.files();
  EXPECT_EQ(put_aside_later(storage_, "root", 6), std::vector<int64_t>());
  EXPECT_EQ(put_aside_later(storage_, "root", 2), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(steps_in(storage_), std::vector<int64_t>{2});
  EXPECT_EQ(storage_.files().at("root/replaced-6/manifest.json"), files.at("root/step-6/manifest.json"));
  EXPECT_EQ(storage_.files().size(), files.size()) << "nothing is deleted";
}

TEST_F(Catalogue, StepsAfterItThatAreLinksAreCheckpointsNoMoreEither) {
  test::TemporaryFolder folder;
  const std::unique_ptr<Storage> storage = make_posix_storage();
  for (const char* place : {"root/step-2", "archive/step-4", "archive/step-6"}) {
    std::filesystem::create_directories(folder / place);
    storage->write_all(folder / place / kManifestFile, "{}");
  }
  for (const char* step : {"step-4", "step-6"}) {
    std::filesystem::create_directory_symlink(folder / "archive" / step, folder / "root" / step);
  }
  EXPECT_EQ(put_aside_later(*storage, folder / "root", 2), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(steps_in(*storage, folder / "root"), std::vector<int64_t>{2});
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "root/replaced-6"));
  EXPECT_TRUE(std::filesystem::exists(folder / "archive/step-6/manifest.json"));
}

TEST_F(Catalogue, TheManifestGoesFirst) {
  for (const int64_t step : {10, 20, 30}) save(step);
  const size_t before = storage_.journal().size();
  delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0});
  for (size_t i = before; i < storage_.journal().size(); ++i) {
    const std::string& call = storage_.journal()[i];
    if (!call.starts_with("remove")) continue;
    EXPECT_EQ(call, "remove root/step-10/manifest.json");
    break;
  }
}

TEST_F(Catalogue, WhatCannotBeDeletedIsSaidAndTheOthersGo) {
  for (const int64_t step : {10, 20, 30, 40}) save(step);
  storage_.set_refusal([](const std::string& call) { return call.starts_with("remove root/step-10") ? EACCES : 0; });
  const auto failures = delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].find("step 10"), std::string::npos) << failures[0];
  EXPECT_NE(failures[0].find("Permission denied"), std::string::npos) << failures[0];
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{40, 30, 10}));
}

TEST_F(Catalogue, WhatCouldBeDeletedInPartOnlyIsSaidAndTriedAgainAfterTheNextSave) {
  for (const int64_t step : {10, 20, 30}) save(step);
  storage_.set_refusal(
      [](const std::string& call) { return call.starts_with("remove root/deleting-10/__") ? EACCES : 0; });
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto failures = delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0});
    ASSERT_EQ(failures.size(), 1u) << attempt;
    EXPECT_NE(failures[0].find("Permission denied"), std::string::npos) << failures[0];
    EXPECT_NE(failures[0].find("remove root/deleting-10/"), std::string::npos) << failures[0];
  }
  storage_.set_refusal({});
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}).empty());
  EXPECT_EQ(storage_.list("root").size(), 2u);
}

TEST_F(Catalogue, WhatCannotBeLookedIntoIsNeverDeleted) {
  for (const int64_t step : {10, 20, 30, 40}) save(step);
  storage_.set_refusal([](const std::string& call) { return call == "list root/step-20" ? EIO : 0; });
  EXPECT_TRUE(delete_old(storage_, "root", {.keep_latest = 2, .keep_every = 0}).empty());
  storage_.set_refusal({});
  EXPECT_EQ(steps_in(storage_), (std::vector<int64_t>{40, 30, 20}));
}

TEST_F(Catalogue, AFileThatIsCalledLikeACheckpointIsLeftAloneAndSaid) {
  storage_.make_folders("root");
  storage_.write_all("root/step-6", "a file");
  const auto said = files_in_the_way(storage_, "root");
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].starts_with("root/step-6 is a file, not a checkpoint")) << said[0];
  try {
    save(6);
    FAIL() << "saved";
  } catch (const StorageError& error) {
    EXPECT_EQ(error.reason(), ENOTDIR);
  }
  EXPECT_EQ(storage_.read_all("root/step-6"), "a file");
  EXPECT_EQ(storage_.list("root").size(), 1u) << "nothing was written";
}

TEST_F(Catalogue, TheNewestIsNamedToWhoNamesTheFolderOfARunOrOfItsCheckpoints) {
  EXPECT_EQ(newest_inside(storage_, "root"), "");
  for (const int64_t step : {9, 10}) save(step);
  const std::string said = "it is not a checkpoint, but holds some: name one, such as the newest, root/step-10";
  EXPECT_EQ(newest_inside(storage_, "root"), said);
  EXPECT_EQ(newest_inside(storage_, "root/step-10"), "");
  save_as_all_ranks(storage_, {"run/checkpoint", 3, "run"}, test_layouts()[0], 3);
  EXPECT_TRUE(newest_inside(storage_, "run").ends_with("run/checkpoint/step-3"));
}

// ---- The whole ----

CheckpointerOptions options_of(SaveMode mode, std::function<void(const SaveOutcome&)> saved) {
  CheckpointerOptions options = test_options(mode, std::move(saved));
  options.retention.keep_latest = 2;
  options.warn = [](const std::string& warning) { ADD_FAILURE() << warning; };
  return options;
}

CheckpointerOptions options_of(SaveMode mode) {
  return options_of(mode, [](const SaveOutcome&) {});
}

TEST(CheckpointerOfOne, LoadsWhatTheFormerRunSavedAndKeepsTheLatest) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  const TestLayout layout = test_layouts()[0];
  std::unique_ptr<MemoryStorage> storage;
  {
    Checkpointer first(medium, *barrier, options_of(SaveMode::asynchronous, [](const SaveOutcome& outcome) {
                         EXPECT_TRUE(outcome.committed);
                       }));
    EXPECT_FALSE(first.load(std::nullopt, [](OpenCheckpoint&) {}).step);
    for (const int64_t step : {1, 2, 3}) first.save(step, test_state(layout, 0, step));
    first.finish();
    EXPECT_EQ(steps_in(medium), (std::vector<int64_t>{3, 2}));
    storage = medium.copy();
  }
  storage->make_folders("root/saving-4-dead");
  storage->write_all("root/saving-4-dead/__0_0.distcp", "half");
  Checkpointer second(*storage, *barrier, options_of(SaveMode::synchronous));
  const std::vector<LoadTarget> targets = test_targets(layout, 0);
  EXPECT_EQ(second.load(std::nullopt, [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); }).step, 3);
  EXPECT_TRUE(holds_version(targets, 3));
  EXPECT_EQ(storage->list("root").size(), 2u) << "what was half written is gone";
}

TEST(CheckpointerOfOne, RemovesNothingWhenTheStartIsRefusedAndGivesBackWhatWasToBeReplaced) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  const TestLayout layout = test_layouts()[0];
  save_as_all_ranks(medium, {"root", 3, "run"}, layout, 3);
  medium.rename("root/step-3", "root/deleting-3-run");
  medium.make_folders("root/saving-4-dead");
  Checkpointer checkpointer(medium, *barrier, options_of(SaveMode::synchronous));
  const auto refuse = [](OpenCheckpoint&) { throw MismatchError("it is another model"); };
  EXPECT_THROW(checkpointer.load(std::nullopt, refuse), Error);
  EXPECT_EQ(steps_in(medium), (std::vector<int64_t>{3}));
  EXPECT_EQ(medium.list("root").size(), 2u);
  EXPECT_EQ(checkpointer.load(std::nullopt, [](OpenCheckpoint&) {}).step, 3);
  EXPECT_EQ(medium.list("root").size(), 1u);
}

/// Whether each attempt succeeded when a run saves while the medium refuses the first `failures` manifests.
std::vector<bool> attempts_with(int failures, bool now) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  medium.set_refusal([&](const std::string& call) {
    return call.find(kManifestFile) != std::string::npos && call.starts_with("create") && failures-- > 0 ? EIO : 0;
  });
  std::vector<bool> committed;
  Checkpointer checkpointer(medium, *barrier, options_of(SaveMode::asynchronous, [&](const SaveOutcome& outcome) {
                              committed.push_back(outcome.committed);
                            }));
  checkpointer.save(7, test_state(test_layouts()[0], 0, 7), now);
  checkpointer.finish();
  EXPECT_EQ(steps_in(medium).size(), committed.back() ? 1u : 0u);
  return committed;
}

TEST(CheckpointerOfOne, TriesTheLastSaveOfARunOnceMoreWhenItFails) {
  EXPECT_EQ(attempts_with(0, /*now=*/true), (std::vector<bool>{true}));
  EXPECT_EQ(attempts_with(1, /*now=*/true), (std::vector<bool>{false, true}));
  EXPECT_EQ(attempts_with(2, /*now=*/true), (std::vector<bool>{false, false}));
  EXPECT_EQ(attempts_with(1, /*now=*/false), (std::vector<bool>{false})) << "the next interval tries again";
}

TEST(CheckpointerOfOne, TriesALastSaveOfAnotherFormOnceMoreToo) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  std::vector<bool> committed;
  Checkpointer checkpointer(medium, *barrier, options_of(SaveMode::synchronous, [&](const SaveOutcome& outcome) {
                              committed.push_back(outcome.committed);
                            }));
  int calls = 0;
  checkpointer.save_by([&] { return SaveOutcome{7, ++calls == 2, calls == 2 ? "" : "no", "root/step-7", 0, 0}; });
  EXPECT_EQ(committed, (std::vector<bool>{false, true}));
}

/// What a rank's trial of a medium that refuses some calls comes to: the warning, or "error: " and the message.
std::string trial_on(std::function<int(const std::string&)> refusal) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  medium.set_refusal(std::move(refusal));
  CheckpointerOptions options = options_of(SaveMode::synchronous);
  options.root = "a/root";
  Checkpointer checkpointer(medium, *barrier, options);
  std::string said;
  try {
    said = checkpointer.rehearse();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    said = std::string("error: ") + error.what();
  }
  medium.set_refusal({});
  EXPECT_TRUE(medium.files().empty()) << "nothing is left behind";
  return said;
}

TEST(CheckpointerOfOne, ThatOnlyLoadsLeavesAloneWhatAnotherRunMayBeWriting) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  medium.make_folders("root/saving-4-alive");
  CheckpointerOptions options = options_of(SaveMode::synchronous);
  options.only_loads = true;
  Checkpointer reader(medium, *barrier, options);
  EXPECT_FALSE(reader.load(std::nullopt, [](OpenCheckpoint&) {}).step);
  EXPECT_EQ(medium.list("root").size(), 1u);
}

TEST(CheckpointerOfOne, FindsOutBeforehandWhetherItCanWrite) {
  EXPECT_EQ(trial_on({}), "");
  for (const char* call : {"make", "write"}) {
    const auto refusing = [&](int reason) {
      return [call, reason](const std::string& what) { return what.starts_with(call) ? reason : 0; };
    };
    EXPECT_TRUE(trial_on(refusing(EACCES)).starts_with("error: cannot ")) << call;
    const std::string warning = trial_on(refusing(ENOSPC));
    EXPECT_NE(warning.find("No space left"), std::string::npos) << call << ": " << warning;
    EXPECT_FALSE(warning.starts_with("error")) << warning;
  }
}

TEST(CheckpointerOfOne, SeesToItOnceThatTheWayToItsCheckpointsIsOnTheMedium) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  medium.make_folders("dump");  // by whoever writes logs; it may not be on the medium
  CheckpointerOptions options = test_options(
      SaveMode::synchronous, [](const SaveOutcome& outcome) { EXPECT_TRUE(outcome.committed) << outcome.problem; });
  options.root = "dump/root";
  Checkpointer checkpointer(medium, *barrier, options);
  EXPECT_EQ(checkpointer.rehearse(), "");
  const auto syncs_of_the_way = [&] {
    const std::vector<std::string>& calls = medium.journal();
    return std::count(calls.begin(), calls.end(), "sync dump") + std::count(calls.begin(), calls.end(), "sync ");
  };
  const auto before = syncs_of_the_way();
  EXPECT_GT(before, 0);
  for (const int64_t step : {1, 2, 3}) checkpointer.save(step, test_state(test_layouts()[0], 0, step));
  EXPECT_EQ(syncs_of_the_way(), before);
  medium.restart({Surviving::Kind::none, 0});
  EXPECT_EQ(find_checkpoints(medium, "dump/root").size(), 3u);
}

TEST(CheckpointerOfOne, SeesToTheWayAtTheFirstSaveWhenTheRehearsalCouldNot) {
  MemoryStorage medium;
  const auto barrier = make_lone_barrier();
  medium.make_folders("dump");
  CheckpointerOptions options = test_options(SaveMode::synchronous, [](const SaveOutcome&) {});
  options.root = "dump/root";
  Checkpointer checkpointer(medium, *barrier, options);
  medium.set_refusal([](const std::string& call) { return call.starts_with("sync") ? EIO : 0; });
  EXPECT_NE(checkpointer.rehearse(), "");
  medium.set_refusal({});
  checkpointer.save(1, test_state(test_layouts()[0], 0, 1));
  medium.restart({Surviving::Kind::none, 0});
  EXPECT_EQ(find_checkpoints(medium, "dump/root").size(), 1u);
}

}  // namespace
}  // namespace titan
