#include "titan/base/filesystem.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace titan {
namespace {

/// A folder of its own for each test.
class Locks : public ::testing::Test {
 protected:
  Locks() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-lock-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Locks() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(Locks, OneAtATimeHoldsItAndTheOtherLearnsWho) {
  const std::filesystem::path path = folder_ / "lock";
  {
    const LockFile first(path, "the first, which is longer");
    EXPECT_EQ(first.state(), LockFile::State::held);
    const LockFile second(path, "the second");
    EXPECT_EQ(second.state(), LockFile::State::taken);
    EXPECT_EQ(second.detail(), "the first, which is longer");
  }
  const LockFile third(path, "the third");
  EXPECT_EQ(third.state(), LockFile::State::held);
  EXPECT_EQ(read_file(path), "the third\n");
}

TEST_F(Locks, AKilledProcessHoldsNothing) {
  const std::filesystem::path path = folder_ / "lock";
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const LockFile held(path, "a child");
    const char said = held.state() == LockFile::State::held ? 'y' : 'n';
    if (::write(ready[1], &said, 1) == 1) ::pause();
    ::_exit(1);
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_EQ(LockFile(path, "me").state(), LockFile::State::taken);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(LockFile(path, "me").state(), LockFile::State::held);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Locks, AHolderSeesThatItsFileWasRemovedOrReplaced) {
  const std::filesystem::path path = folder_ / "lock";
  const LockFile first(path, "the first");
  EXPECT_TRUE(first.is_in_place());
  std::filesystem::remove(path);
  EXPECT_FALSE(first.is_in_place());
  const LockFile second(path, "the second");
  EXPECT_EQ(second.state(), LockFile::State::held);
  EXPECT_TRUE(second.is_in_place());
  EXPECT_FALSE(first.is_in_place());
}

TEST_F(Locks, WhereNoFileCanBeMadeTheReasonIsKept) {
  const LockFile lock(folder_ / "none" / "lock", "me");
  EXPECT_EQ(lock.state(), LockFile::State::unlockable);
  EXPECT_EQ(lock.detail(), "No such file or directory");
}

}  // namespace
}  // namespace titan
