// Every case of every kernel, on the host and, where there is one, on a GPU; and that each barrier in the sources is
// missed by some case.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "cases.h"
#include "support/checkout.h"
#include "support/cuda_on_host.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

std::string name_of(const testing::TestParamInfo<KernelCase>& info) { return info.param.name; }

class Kernel : public ::testing::TestWithParam<KernelCase> {};

TEST_P(Kernel, WritesWhatTheReferenceSaysAndMovesTheBytesItsHeaderStates) {
  EXPECT_EQ(GetParam().run(*make_host_machine()), "");
}

INSTANTIATE_TEST_SUITE_P(OnHost, Kernel, ::testing::ValuesIn(kernel_cases()), name_of);

/// One for all cases: a GPU takes its time to be ready.
const FoundGpu& gpu() {
  static const FoundGpu found = find_gpu_machine();
  return found;
}

std::vector<KernelCase> cases_for_the_gpu() { return gpu().machine ? kernel_cases() : std::vector<KernelCase>(); }

class KernelOfTheGpu : public ::testing::TestWithParam<KernelCase> {};

TEST_P(KernelOfTheGpu, WritesWhatTheReferenceSays) { EXPECT_EQ(GetParam().run(*gpu().machine), ""); }

INSTANTIATE_TEST_SUITE_P(OnGpu, KernelOfTheGpu, ::testing::ValuesIn(cases_for_the_gpu()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelOfTheGpu);

TEST(KernelsOfTheGpu, RunEveryCaseOfTheHost) {
  if (!gpu().machine) GTEST_SKIP() << "there is no GPU to run kernels on: " << gpu().why_not;
  EXPECT_EQ(cases_for_the_gpu().size(), kernel_cases().size());
}

/// A machine whose memory the host sees only through copies, as a GPU's: cases must not write to it past `write`, nor
/// read what an earlier launch left.
TEST(KernelCases, ReachAMachinesMemoryOnlyThroughTheMachine) {
  for (const KernelCase& one : kernel_cases()) EXPECT_EQ(one.run(*make_distant_machine()), "") << one.name;
}

/// Places of __syncthreads and __syncwarp in the kernels' sources.
std::set<cuda_on_host::Site> barriers_in_sources() {
  std::set<cuda_on_host::Site> sites;
  const std::filesystem::path folder = std::filesystem::path(checkout()) / "src" / "kernels";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    int number = 0;
    for (const std::string& line : split(read_file(entry.path()), '\n')) {
      ++number;
      if (line.find("__syncthreads()") != std::string::npos || line.find("__syncwarp()") != std::string::npos)
        sites.insert({entry.path().filename().string(), number});
    }
  }
  return sites;
}

/// Whether one of `cases` fails, in one of a few orders of the warps.
bool noticed(const std::vector<const KernelCase*>& cases) {
  const std::unique_ptr<KernelMachine> host = make_host_machine();
  for (uint64_t order : {1, 2, 3}) {
    for (const KernelCase* one : cases) {
      cuda_on_host::set_order(order);
      try {
        if (!one->run(*host).empty()) return true;
      } catch (const cuda_on_host::KernelError&) {
        return true;
      }
    }
  }
  return false;
}

TEST(LostBarrier, OfAnyKernelFailsSomeCase) {
  std::map<cuda_on_host::Site, std::vector<const KernelCase*>> cases_at;
  for (const KernelCase& one : kernel_cases()) {
    cuda_on_host::forget_barriers_met();
    one.run(*make_host_machine());
    for (const cuda_on_host::Site& site : cuda_on_host::barriers_met()) cases_at[site].push_back(&one);
  }
  std::set<cuda_on_host::Site> met;
  for (const auto& [site, cases] : cases_at) {
    met.insert({std::filesystem::path(site.file).filename().string(), site.line});
    cuda_on_host::lose_barrier(site);
    EXPECT_TRUE(noticed(cases)) << "without " << site.file << ":" << site.line << " every case passes";
  }
  cuda_on_host::lose_barrier({});
  const std::set<cuda_on_host::Site> in_sources = barriers_in_sources();
  EXPECT_FALSE(in_sources.empty());
  for (const cuda_on_host::Site& site : in_sources)
    EXPECT_TRUE(met.contains(site)) << "no case comes to " << site.file << ":" << site.line;
}

}  // namespace
}  // namespace titan
