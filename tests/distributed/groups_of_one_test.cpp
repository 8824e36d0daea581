// Communicators of one rank: every collective is a copy of what it was given, and is counted like any other. On a GPU
// this is the least that NCCL has to do, and all that one card can show of it alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "titan/distributed/mesh_communicators.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

/// Over Gloo or NCCL.
class GroupsOfOne : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_gpu()) GTEST_SKIP() << "there is no CUDA device here";
    World world{.rank = 0, .size = 1, .local_rank = 0, .store = {}, .launcher = {}};
    world.store = c10::make_intrusive<c10d::HashStore>();
    communicators_ =
        make_mesh_communicators(DeviceMesh({}, 1), 0, std::chrono::seconds(60), communicator_maker(world, device_),
                                /*groups_of_one=*/true);
  }
  void TearDown() override { communicators_.shut_down(); }

  at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type = at::kFloat) const {
    return at::arange(1, 1 + c10::multiply_integers(shape), at::TensorOptions(device_)).view(shape).to(type);
  }

  at::Device device_{GetParam(), static_cast<c10::DeviceIndex>(GetParam() == at::kCUDA ? 0 : -1)};
  MeshCommunicators communicators_;
};

TEST_P(GroupsOfOne, ExistForEveryPartOfTheMesh) {
  EXPECT_EQ(communicators_.all().size(), 9u);
  for (const Communicator* communicator : communicators_.all()) EXPECT_EQ(communicator->size(), 1);
}

TEST_P(GroupsOfOne, GatherAndScatterWhatTheyAreGiven) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> inputs{numbers({3, 5}, type), numbers({7}, type)};
    std::vector<at::Tensor> gathered, scattered;
    for (const at::Tensor& input : inputs) {
      gathered.push_back(at::zeros_like(input));
      scattered.push_back(at::zeros_like(input));
    }
    communicators_.gather->all_gather(gathered, inputs)->wait();
    communicators_.scatter->reduce_scatter(scattered, inputs)->wait();
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(gathered[i].equal(inputs[i])) << i;
      EXPECT_TRUE(scattered[i].equal(inputs[i])) << i;
    }
  }
}

TEST_P(GroupsOfOne, LeaveWhatTheyReduceAsItIs) {
  for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      const at::Tensor reduced = numbers({11}, type);
      communicators_.model->all_reduce({reduced}, reduction)->wait();
      EXPECT_TRUE(reduced.equal(numbers({11}, type)));
    }
  }
}

TEST_P(GroupsOfOne, CountTheirCallsAndBytes) {
  communicators_.world->all_reduce({numbers({4}), numbers({6})})->wait();
  const Traffic& counted = communicators_.world->traffic()[static_cast<size_t>(Collective::all_reduce)];
  EXPECT_EQ(counted.calls, 1);
  EXPECT_EQ(counted.bytes, 40);
}

TEST(GlooBetweenHosts, UsesTheInterfaceThatTheEnvironmentNames) {
  World world{.rank = 0, .size = 2, .local_rank = 0, .store = {}, .launcher = {}};
  world.store = c10::make_intrusive<c10d::HashStore>();
  auto make = [&] {
    return make_mesh_communicators(DeviceMesh({}, 1), 0, std::chrono::seconds(60), communicator_maker(world, at::kCPU),
                                   /*groups_of_one=*/true);
  };
  ::setenv("GLOO_SOCKET_IFNAME", "no-such-one", /*overwrite=*/1);
  EXPECT_ANY_THROW(make());
  ::setenv("GLOO_SOCKET_IFNAME", "lo", /*overwrite=*/1);
  EXPECT_NO_THROW(make());
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(PeerMemoryMaker, KnowsWhoSharesAHostHoweverItsRanksAreNumbered) {
  ParallelDegrees degrees;
  degrees.dp_shard = 2;
  degrees.tp = 2;
  const DeviceMesh mesh(degrees, 4);
  // As mpirun --map-by node deals them out: ranks 0 and 2 here, 1 and 3 there.
  World world{.rank = 3, .size = 4, .local_rank = 1, .host_ranks = {1, 3}, .store = {}, .launcher = {}};
  world.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_FALSE(peer_memory_maker(world, mesh, at::kCPU, std::chrono::seconds(1)));
  world.host_ranks = {0, 2, 3};
  EXPECT_TRUE(peer_memory_maker(world, mesh, at::kCPU, std::chrono::seconds(1)));
}

std::string backend(const testing::TestParamInfo<at::DeviceType>& info) {
  return info.param == at::kCUDA ? "Nccl" : "Gloo";
}
INSTANTIATE_TEST_SUITE_P(Backends, GroupsOfOne, testing::Values(at::kCPU, at::kCUDA), backend);

}  // namespace
}  // namespace titan
