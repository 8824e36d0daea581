#include "titan/checkpoint/storage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "checkpoint/memory_storage.h"

namespace titan {
namespace {

/// The same behaviour of a real folder and of the one in memory.
class AnyStorage : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      storage_ = make_posix_storage();
      root_ = std::filesystem::temp_directory_path() / ("titan-storage-" + std::to_string(::getpid()));
      std::filesystem::remove_all(root_);
    } else {
      storage_ = std::make_unique<MemoryStorage>();
      root_ = "checkpoint";
    }
    storage_->make_folders(root_);
  }
  void TearDown() override {
    if (GetParam()) std::filesystem::remove_all(root_);
  }

  int reason_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const StorageError& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      return error.reason();
    }
    return 0;
  }

  std::unique_ptr<Storage> storage_;
  std::filesystem::path root_;
};

TEST_P(AnyStorage, WhatIsWrittenIsReadBackWholeAndInParts) {
  storage_->write_all(root_ / "file", "0123456789");
  EXPECT_EQ(storage_->read_all(root_ / "file"), "0123456789");
  const auto file = storage_->open(root_ / "file");
  EXPECT_EQ(file->size(), 10);
  std::string part(4, ' ');
  file->read(3, part);
  EXPECT_EQ(part, "3456");
}

TEST_P(AnyStorage, ReadingBeyondTheEndIsAnError) {
  storage_->write_all(root_ / "file", "0123");
  std::string part(4, ' ');
  EXPECT_EQ(reason_of([&] { storage_->open(root_ / "file")->read(1, part); }), ENODATA);
}

TEST_P(AnyStorage, AFileThatIsThereIsNotOverwritten) {
  storage_->write_all(root_ / "file", "first");
  EXPECT_EQ(reason_of([&] { storage_->write_all(root_ / "file", "second"); }), EEXIST);
  EXPECT_EQ(storage_->read_all(root_ / "file"), "first");
}

TEST_P(AnyStorage, AFileThatIsNotThereCannotBeReadAndAFolderNeither) {
  EXPECT_EQ(reason_of([&] { storage_->read_all(root_ / "absent"); }), ENOENT);
  EXPECT_EQ(reason_of([&] { storage_->read_all(root_); }), EISDIR);
}

TEST_P(AnyStorage, EntriesAreListedByNameWithFoldersMarkedAndAnAbsentFolderIsEmpty) {
  storage_->write_all(root_ / "b", "");
  storage_->make_folders(root_ / "a" / "deep");
  const auto entries = storage_->list(root_);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_TRUE(entries[0].is_folder);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_FALSE(entries[1].is_folder);
  EXPECT_TRUE(storage_->list(root_ / "absent").empty());
}

TEST_P(AnyStorage, ARenamedFolderKeepsItsFilesUnderTheNewNameOnly) {
  storage_->make_folders(root_ / "old");
  storage_->write_all(root_ / "old" / "file", "x");
  storage_->rename(root_ / "old", root_ / "new");
  EXPECT_EQ(storage_->read_all(root_ / "new" / "file"), "x");
  EXPECT_TRUE(storage_->list(root_ / "old").empty());
}

TEST_P(AnyStorage, AFolderIsRemovedWithAllThatIsInItAndASecondTimeIsFine) {
  storage_->make_folders(root_ / "a" / "b");
  storage_->write_all(root_ / "a" / "b" / "file", "x");
  storage_->remove_folder(root_ / "a");
  EXPECT_TRUE(storage_->list(root_).empty());
  storage_->remove_folder(root_ / "a");
}

TEST_P(AnyStorage, AFileInThePlaceOfAFolderIsAnError) {
  storage_->write_all(root_ / "file", "x");
  EXPECT_EQ(reason_of([&] { storage_->make_folders(root_ / "file"); }), ENOTDIR);
}

TEST_P(AnyStorage, ThereIsSomeSpace) { EXPECT_GT(storage_->free_bytes(root_), 0); }

INSTANTIATE_TEST_SUITE_P(PosixAndMemory, AnyStorage, ::testing::Values(true, false),
                         [](const auto& param) { return param.param ? "Posix" : "Memory"; });

TEST(PosixStorage, RemovingAFolderDoesNotFollowLinksOutOfIt) {
  const auto root = std::filesystem::temp_directory_path() / ("titan-links-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "kept");
  std::ofstream(root / "kept" / "file") << "x";
  std::filesystem::create_directories(root / "gone");
  std::filesystem::create_directory_symlink(root / "kept", root / "gone" / "link");
  make_posix_storage()->remove_folder(root / "gone");
  EXPECT_FALSE(std::filesystem::exists(root / "gone"));
  EXPECT_TRUE(std::filesystem::exists(root / "kept" / "file"));
  std::filesystem::remove_all(root);
}

TEST(PosixStorage, AnErrorNamesTheFileAndTheReason) {
  try {
    make_posix_storage()->read_all("/nowhere/at/all");
    FAIL();
  } catch (const StorageError& error) {
    EXPECT_STREQ(error.what(), "cannot read /nowhere/at/all: No such file or directory");
  }
}

// What a crash takes away, in the storage in memory: the tests of commits rest on it.

constexpr Surviving kNone{Surviving::Kind::none, 0};
constexpr Surviving kAll{Surviving::Kind::all, 0};

TEST(MemoryStorage, AfterACrashOnlySyncedBytesUnderSyncedNamesAreThere) {
  MemoryStorage storage;
  storage.make_folders("a");
  storage.write_all("a/named", "safe");
  storage.sync_folder("");
  storage.sync_folder("a");
  storage.write_all("a/unnamed", "safe but nobody finds it");
  const auto file = storage.create("a/unsynced");
  file->write("x");
  EXPECT_EQ(storage.files().size(), 3u);
  storage.restart(kNone);
  EXPECT_EQ(storage.files(), (std::map<std::string, std::string>{{"a/named", "safe"}}));
}

TEST(MemoryStorage, AfterACrashThatDropsNothingEverythingIsThere) {
  MemoryStorage storage;
  storage.make_folders("a");
  storage.create("a/file")->write("bytes");
  storage.restart(kAll);
  EXPECT_EQ(storage.read_all("a/file"), "bytes");
}

TEST(MemoryStorage, ASeededHalfOfTheUnsyncedChangesSurvives) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    MemoryStorage storage;
    const auto file = storage.create("file");
    storage.sync_folder("");
    file->write("ab");
    file->write("cd");
    storage.restart({Surviving::Kind::half, seed});
    ++seen[storage.read_all("file")];
  }
  EXPECT_EQ(seen.size(), 4u);  // nothing, the first write, only the second behind a hole, both
  EXPECT_TRUE(seen.contains("") && seen.contains("ab") && seen.contains(std::string("\0\0cd", 4)) &&
              seen.contains("abcd"));
}

TEST(MemoryStorage, AnUnsyncedRenameIsUndoneByACrashAndNeverHalfDone) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    MemoryStorage storage;
    storage.make_folders("old");
    storage.sync_folder("");
    storage.rename("old", "new");
    storage.restart({Surviving::Kind::half, seed});
    EXPECT_EQ(storage.list("").size(), 1u) << seed;
  }
}

TEST(MemoryStorage, AMachineThatStopsDoesTheCallAndNothingAfter) {
  MemoryStorage storage;
  storage.stop_after(1);
  EXPECT_THROW(storage.make_folders("a"), MachineStopped);
  EXPECT_THROW(storage.make_folders("b"), MachineStopped);
  storage.restart(kAll);
  EXPECT_EQ(storage.list("").size(), 1u);
}

TEST(MemoryStorage, AFullDiskTakesWhatFitsThenRefuses) {
  MemoryStorage storage;
  storage.set_capacity(3);
  const auto file = storage.create("file");
  EXPECT_THROW(file->write("12345"), StorageError);
  EXPECT_EQ(storage.read_all("file"), "123");
}

TEST(MemoryStorage, ShortWritesAreContinued) {
  MemoryStorage storage;
  storage.limit_writes(2);
  storage.write_all("file", "12345");
  EXPECT_EQ(storage.read_all("file"), "12345");
}

}  // namespace
}  // namespace titan
