#include "titan/base/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "titan/base/process.h"

namespace titan {
namespace {

/// A machine's /proc and /sys in a folder.
class Groups : public testing::Test {
 protected:
  std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) / ("titan-groups-" + std::to_string(::getpid()));

  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  ControlGroups groups() const { return ControlGroups(root_); }
  int64_t processors() const {
    const auto limit = groups().processors();
    return limit ? limit->limit : 0;
  }

  /// Of v2, with a slice, a job in it and a step in that, to which the process belongs.
  void make_v2() const {
    write("proc/self/mountinfo",
          "24 1 0:22 / /proc rw - proc proc rw\n30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "0::/slice/job/step\n");
    write("sys/fs/cgroup/slice/job/step/cgroup.procs", "");
  }
  /// Of v1: one mount for each controller; the container sees its own group as the root of memory's.
  void make_v1() const {
    write("proc/self/mountinfo",
          "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "32 1 0:28 /docker/ab /sys/fs/cgroup/memory rw master:1 - cgroup cgroup rw,memory\n"
          "33 1 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n");
    write("proc/self/cgroup", "4:pids:/docker/ab\n3:memory:/docker/ab/inner\n2:cpu,cpuacct:/slurm/job\n0::/\n");
  }
};

TEST_F(Groups, WithoutFilesSetNoLimit) {
  EXPECT_FALSE(groups().processors());
  EXPECT_FALSE(groups().memory());
  EXPECT_FALSE(groups().memory_left());
  EXPECT_FALSE(groups().tasks());
  make_v2();
  EXPECT_FALSE(groups().processors());
  EXPECT_FALSE(groups().memory_left());
}

TEST_F(Groups, OfVersion2AreReadUpToTheMountAndTheSmallestQuotaIsRoundedUp) {
  make_v2();
  write("sys/fs/cgroup/slice/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(processors(), 0);
  write("sys/fs/cgroup/cpu.max", "800000 100000\n");
  EXPECT_EQ(processors(), 8);
  write("sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(processors(), 3);
  write("sys/fs/cgroup/slice/job/cpu.max", "25000 50000\n");
  EXPECT_EQ(processors(), 1);
  EXPECT_EQ(groups().processors()->file, root_ / "sys/fs/cgroup/slice/job/cpu.max");
  write("sys/fs/cgroup/slice/job/cpu.max", "nonsense\n");
  EXPECT_EQ(processors(), 3);
}

TEST_F(Groups, OfVersion1AreReadInTheHierarchyOfTheirController) {
  make_v1();
  write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors(), 0);
  write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors(), 2);
  write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "700\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 5\ntotal_inactive_file 200\n");
  EXPECT_EQ(groups().memory()->limit, 1000);
  EXPECT_EQ(groups().memory_left(), 500);
  write("sys/fs/cgroup/pids/pids.max", "12\n");
  EXPECT_EQ(groups().tasks()->limit, 12) << "the group's path on the host is not below this mount";
}

TEST_F(Groups, LeaveTheLeastMemoryOfAllThatHaveALimit) {
  make_v2();
  write("sys/fs/cgroup/slice/job/step/memory.max", "900\n");
  write("sys/fs/cgroup/slice/job/step/memory.current", "100\n");
  write("sys/fs/cgroup/slice/memory.max", "1000\n");
  write("sys/fs/cgroup/slice/memory.current", "980\n");
  write("sys/fs/cgroup/slice/memory.stat", "anon 800\nfile 100\ninactive_file 40\n");
  EXPECT_EQ(groups().memory()->limit, 900);
  EXPECT_EQ(groups().memory_left(), 60);
}

TEST_F(Groups, OfAnotherNamespaceAreThoseOfTheMount) {
  make_v2();
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(processors(), 4);
  write("proc/self/cgroup", "0::/gone/since\n");
  EXPECT_EQ(processors(), 4);
}

TEST_F(Groups, AreFoundWhereTheMountsPathHasSpaces) {
  write("proc/self/mountinfo", "30 1 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "0::/\n");
  write("my groups/cpu.max", "200000 100000\n");
  EXPECT_EQ(processors(), 2);
}

TEST(DefaultThreads, AreAtMostWhatOpenMpIsToldAndNonsenseIsNoLimit) {
  ::setenv("OMP_NUM_THREADS", "3,2", 1);
  EXPECT_EQ(openmp_threads(), 3);
  EXPECT_EQ(default_threads(8), 3);
  EXPECT_EQ(default_threads(2), 2);
  for (const char* text : {"", "0", "-4", "x", "2x"}) {
    ::setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(openmp_threads(), std::nullopt) << text;
    EXPECT_EQ(default_threads(8), 8) << text;
  }
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(default_threads(8), 8);
}

TEST(UsableProcessors, AreOneAtLeastAndNoMoreThanTheMachineHas) {
  EXPECT_GE(usable_processors(), 1);
  EXPECT_LE(usable_processors(), machine_cores());
}

}  // namespace
}  // namespace titan
