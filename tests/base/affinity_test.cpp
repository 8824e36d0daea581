#include "titan/base/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace titan {
namespace {

using CoreNumbers = std::vector<int>;

TEST(Cores, AreListedAsRanges) {
  EXPECT_EQ(core_list({}), "");
  EXPECT_EQ(core_list({3}), "3");
  EXPECT_EQ(core_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Cores, AreReadAsTheSystemListsThem) {
  EXPECT_EQ(parse_core_list("0-2,5,7-8\n"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(parse_core_list("3"), std::vector<int>{3});
  for (const char* text : {"", "\n", "x", "1,", "2-1", "1-2-3", "-1", "0-999999999", "99999999999"}) {
    EXPECT_TRUE(parse_core_list(text).empty()) << text;
  }
}

TEST(Cores, OfAThreadThatIsBoundAreThoseItIsBoundTo) {
  const std::vector<int> all = allowed_cores();
  ASSERT_FALSE(all.empty());
  std::vector<int> bound;
  std::thread([&] {
    EXPECT_TRUE(bind_to({all.back()}));
    bound = allowed_cores();
  }).join();
  EXPECT_EQ(bound, std::vector<int>{all.back()});
}

TEST(Cores, NobodyIsBoundToNone) { EXPECT_FALSE(bind_to({})); }

TEST(Cores, OfTheMachineAreAtLeastThoseOfTheProcess) {
  EXPECT_GE(machine_cores(), static_cast<int>(allowed_cores().size()));
}

/// A /sys of two nodes with four cores each; two GPUs that hang on them, and one that does not say where it is.
class NearCores : public testing::Test {
 protected:
  std::filesystem::path sys_ = std::filesystem::path(testing::TempDir()) / ("titan-sys-" + std::to_string(::getpid()));

  void SetUp() override {
    write("devices/system/node/node0/cpulist", "0-1,4-5\n");
    write("devices/system/node/node1/cpulist", "2-3,6-7\n");
    write("bus/pci/devices/0000:3b:00.0/numa_node", "0\n");
    write("bus/pci/devices/0000:d8:00.0/numa_node", "1\n");
    write("bus/pci/devices/0000:01:00.0/numa_node", "-1\n");
    write("bus/pci/devices/0000:02:00.0/numa_node", "7\n");  // a node without a folder
  }
  void TearDown() override { std::filesystem::remove_all(sys_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((sys_ / path).parent_path());
    std::ofstream(sys_ / path) << text;
  }
};

TEST_F(NearCores, AreThoseOfTheNodeThatADeviceHangsOn) {
  EXPECT_EQ(cores_near(sys_, "0000:3b:00.0"), (CoreNumbers{0, 1, 4, 5}));
  EXPECT_EQ(cores_near(sys_, "0000:d8:00.0"), (CoreNumbers{2, 3, 6, 7}));
}

TEST_F(NearCores, AreUnknownWhereTheSystemDoesNotSay) {
  for (const char* device : {"0000:01:00.0", "0000:02:00.0", "0000:99:00.0", ""}) {
    EXPECT_TRUE(cores_near(sys_, device).empty()) << device;
  }
}

TEST(BetterCores, OfAllNodesAreTheNearOnes) {
  EXPECT_EQ(better_cores({0, 1, 2, 3, 4, 5, 6, 7}, {2, 3, 6, 7}), (CoreNumbers{2, 3, 6, 7}));
  EXPECT_EQ(better_cores({1, 2, 3}, {2, 3, 6, 7}), (CoreNumbers{2, 3}));
}

TEST(BetterCores, OfASingleOneOrOfOtherNodesAloneAreAllNearOnes) {
  EXPECT_EQ(better_cores({2}, {2, 3, 6, 7}), (CoreNumbers{2, 3, 6, 7}));
  EXPECT_EQ(better_cores({0, 1, 4, 5}, {2, 3, 6, 7}), (CoreNumbers{2, 3, 6, 7}));
}

TEST(BetterCores, AreNoneWhereAllOfThemAreNearOrNothingIsKnown) {
  EXPECT_TRUE(better_cores({2, 3}, {2, 3, 6, 7}).empty());
  EXPECT_TRUE(better_cores({2, 3, 6, 7}, {2, 3, 6, 7}).empty());
  EXPECT_TRUE(better_cores({2}, {2}).empty());
  EXPECT_TRUE(better_cores({0, 1}, {}).empty());
  EXPECT_TRUE(better_cores({0}, {}).empty());
}

}  // namespace
}  // namespace titan
