#include "titan/base/filesystem.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>
#include <vector>

namespace {

/// The calls that decide what a power cut leaves, in order. Null: nothing is noted.
std::vector<std::string>* noted = nullptr;

void note(const char* call) {
  if (noted) noted->emplace_back(call);
}

}  // namespace

// These replace the C library's.
extern "C" {
int fdatasync(int file) {
  note("sync the file");
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}
int fsync(int file) {
  note("sync the folder");
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  note("rename");
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
}

namespace titan {
namespace {

namespace fs = std::filesystem;

using Write = void (*)(const fs::path&, std::string_view);

/// A folder of its own for each test.
class Files : public ::testing::Test {
 protected:
  Files() {
    std::string pattern = (fs::temp_directory_path() / "titan-files-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Files() override { fs::remove_all(folder_); }

  /// The message of the storage error that writing to `path` ends with.
  static std::string refused(Write write, const fs::path& path) {
    try {
      write(path, "bytes");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(Files, WritingReplacesTheWholeFileAndLeavesNothingElse) {
  for (const Write write : {write_file_atomically, replace_file}) {
    for (const std::string bytes : {"first and longer", "second", ""}) {
      write(folder_ / "a", bytes);
      EXPECT_EQ(read_file(folder_ / "a"), bytes);
    }
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, OnlyWhatIsShownTakesItsPlaceBeforeItIsOnTheDisk) {
  std::vector<std::string> calls;
  noted = &calls;
  write_file_atomically(folder_ / "kept", "bytes");
  EXPECT_EQ(std::exchange(calls, {}), (std::vector<std::string>{"sync the file", "rename", "sync the folder"}));
  replace_file(folder_ / "shown", "bytes");
  noted = nullptr;
  EXPECT_EQ(calls, std::vector<std::string>{"rename"});
}

TEST_F(Files, AFailedWriteNamesThePlaceAskedForAndLeavesNothing) {
  fs::create_directory(folder_ / "b");
  for (const Write write : {write_file_atomically, replace_file}) {
    EXPECT_EQ(refused(write, folder_ / "none/a"),
              "cannot write " + (folder_ / "none/a").string() + ": No such file or directory");
    EXPECT_EQ(refused(write, folder_ / "b"), "cannot write " + (folder_ / "b").string() + ": Is a directory");
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, WhatIsNoRegularFileIsWrittenToAndNotReplaced) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  for (const Write write : {write_file_atomically, replace_file}) {
    write(pipe, "through");
    std::array<char, 16> buffer{};
    EXPECT_EQ(::read(reader, buffer.data(), buffer.size()), 7);
    EXPECT_STREQ(buffer.data(), "through");
    EXPECT_TRUE(fs::is_fifo(pipe));
  }
  ::close(reader);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, WhatIsShownDoesNotWaitForAPipesReader) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refused(replace_file, pipe), "cannot write " + pipe.string() + ": No such device or address");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(Files, OwnFilesAreRegularFilesAndNothingElse) {
  const fs::path target = folder_ / "target", link = folder_ / "link", pipe = folder_ / "pipe";
  write_file_atomically(target, "kept");
  fs::create_symlink(target, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<fs::path, std::string> others[] = {
      {link, "it is a symbolic link"}, {pipe, "it is a named pipe"}, {"/dev/null", "it is a device"}};
  for (const auto& [path, kind] : others) {
    EXPECT_TRUE(own_file_obstacle(path).starts_with(kind)) << own_file_obstacle(path);
    for (const Write write : {&write_own_file_atomically, &replace_own_file}) {
      EXPECT_NE(refused(write, path).find(kind), std::string::npos) << path;
    }
    AppendFile file(path);
    EXPECT_FALSE(file.append_line("line"));
    EXPECT_NE(file.last_error().find(kind), std::string::npos) << file.last_error();
    const LockFile lock(path, "a test");
    EXPECT_EQ(lock.state(), LockFile::State::unlockable);
    EXPECT_TRUE(lock.detail().starts_with(kind)) << lock.detail();
  }
  EXPECT_EQ(read_file(target), "kept");
  EXPECT_TRUE(fs::is_symlink(link));
  for (const Write write : {&write_own_file_atomically, &replace_own_file}) write(folder_ / "own", "bytes");
  EXPECT_EQ(read_file(folder_ / "own"), "bytes");
  EXPECT_EQ(own_file_obstacle(folder_ / "own"), "");
  EXPECT_EQ(own_file_obstacle(folder_ / "none"), "");
}

TEST_F(Files, APipeWithoutAReaderIsRefusedAndADeviceWithoutAnEndIsNotReadToIt) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refused(&write_file_atomically, pipe), "");
  EXPECT_THROW(read_file("/dev/zero"), Error);
}

TEST_F(Files, AFolderIsNoFileToRead) {
  EXPECT_THROW(read_file(folder_), Error);
  EXPECT_THROW(read_file(folder_ / "none"), Error);
}

TEST_F(Files, FilesThatDoNotTellTheirSizeAreReadToTheirEnd) {
  if (!fs::exists("/proc/self/status")) GTEST_SKIP() << "needs /proc";
  EXPECT_EQ(fs::file_size("/proc/self/status"), 0u);
  EXPECT_NE(read_file("/proc/self/status").find("VmRSS"), std::string::npos);
}

TEST_F(Files, LinesAreAppendedToWhatIsThere) {
  for (const char* line : {"one", "two"}) EXPECT_TRUE(AppendFile(folder_ / "log").append_line(line));
  EXPECT_EQ(read_file(folder_ / "log"), "one\ntwo\n");
}

TEST_F(Files, AFileThatWasRemovedOrMovedAwayIsMadeAgainWithItsFolderForTheNextLine) {
  AppendFile file((make_folders(folder_ / "run"), folder_ / "run/log"));
  EXPECT_TRUE(file.append_line("one"));
  fs::remove_all(folder_ / "run");
  EXPECT_TRUE(file.append_line("two"));
  EXPECT_EQ(read_file(folder_ / "run/log"), "two\n");
  fs::rename(folder_ / "run", folder_ / "elsewhere");
  EXPECT_TRUE(file.append_line("three"));
  EXPECT_EQ(read_file(folder_ / "run/log"), "three\n");
  EXPECT_EQ(read_file(folder_ / "elsewhere/log"), "two\n");
  EXPECT_TRUE(file.append_line("four"));
  EXPECT_EQ(read_file(folder_ / "run/log"), "three\nfour\n");
  fs::remove_all(folder_ / "run");
  std::ofstream(folder_ / "run") << "in the way";
  EXPECT_FALSE(file.append_line("five"));
  fs::remove(folder_ / "run");
  EXPECT_TRUE(file.append_line("six"));
  EXPECT_EQ(read_file(folder_ / "run/log"), "six\n");
}

TEST_F(Files, AFileThatCannotBeOpenedSaysSoAtEveryLineAndDoesNotThrow) {
  AppendFile file(folder_ / "none/log");
  EXPECT_FALSE(file.append_line("one"));
  EXPECT_FALSE(file.append_line("two"));
  EXPECT_NE(file.last_error().find("No such file or directory"), std::string::npos) << file.last_error();
}

}  // namespace
}  // namespace titan
