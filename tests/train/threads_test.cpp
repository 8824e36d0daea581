#include "titan/train/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

TEST(UseThreads, AreThoseThatAParallelRegionHasAndThatLibrariesAreTold) {
  const ThreadCount kept(1);
  for (const int64_t wanted : {1, 3, 2}) {
    const ThreadTeam team = use_threads(wanted);
    EXPECT_EQ(team.threads, wanted);
    EXPECT_EQ(team.reason, "");
    EXPECT_EQ(at::get_num_threads(), wanted);
    int64_t counted = 0;
#pragma omp parallel reduction(+ : counted)
    counted += 1;
    EXPECT_EQ(counted, wanted);
  }
}

TEST(UseThreads, AreAsManyAsAskedForWhereOpenMpWouldChooseItself) {
  const ThreadCount kept(1);
  ::omp_set_dynamic(1);
  EXPECT_EQ(use_threads(4).threads, 4);
  EXPECT_EQ(::omp_get_dynamic(), 0);
}

TEST(UseThreads, AreFewerWhereOpenMpGivesFewerAndTheReasonSaysIt) {
  const ThreadCount kept(1);
  const int levels = ::omp_get_max_active_levels();
  ::omp_set_max_active_levels(0);
  const ThreadTeam team = use_threads(3);
  ::omp_set_max_active_levels(levels);
  EXPECT_EQ(team.threads, 1);
  EXPECT_EQ(at::get_num_threads(), 1);
  EXPECT_TRUE(team.reason.starts_with("OpenMP gives 1 of 3 threads")) << team.reason;
}

TEST(UseThreads, WithoutRoomForTheStacksThatOpenMpIsAskedForEndBeforeItEndsTheProcess) {
  const ThreadCount kept(1);
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    ::setenv(name, " 100000000 g ", /*overwrite=*/1);
    std::string words;
    try {
      use_threads(3);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::out_of_memory);
      words = error.what();
    }
    EXPECT_NE(words.find(std::string(name) + " = 100000000 g, "), std::string::npos) << words;
    for (const char* ignored : {"many", "4 GB", "", "1", "512K"}) {
      ::setenv(name, ignored, /*overwrite=*/1);
      EXPECT_EQ(use_threads(3).threads, 3) << ignored;
    }
    ::unsetenv(name);
  }
}

/// Ends the process with what asking for eight threads ends with where a user may have four.
[[noreturn]] void ask_for_too_many() {
  constexpr uid_t kUnusedUser = 54321;
  const struct rlimit limit { 4, 4 };
  if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setresuid(kUnusedUser, kUnusedUser, kUnusedUser) != 0) ::_exit(9);
  try {
    use_threads(8);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    ::_exit(static_cast<int>(error.code()));
  }
  ::_exit(0);
}

/// In a process of its own: the limit counts all threads of a user, and root has none.
TEST(UseThreads, BeyondTheLimitOfProcessesEndInAnErrorThatNamesIt) {
  if (::getuid() != 0) GTEST_SKIP() << "takes the right to become another user";
  EXPECT_EXIT(ask_for_too_many(), testing::ExitedWithCode(71), "ulimit -u is 4");
}

}  // namespace
}  // namespace titan
