// Weights that a GPU draws are those that the host draws: the kernel, compiled for the host, in every cut of a tensor.
#include <gtest/gtest.h>

#include "support/tensors.h"
#include "titan/distributed/tensor_layout.h"
#include "titan/model/initialise.h"

namespace titan {
namespace {

at::Tensor drawn(const std::vector<int64_t>& shape, const Initialiser& initialiser, const Box& box, at::ScalarType type,
                 const Kernels* kernels) {
  Parameter parameter({"layers.0.attention.wq.weight", shape, initialiser});
  parameter.master = at::full(box.extent, NAN, at::TensorOptions(type));
  initialise(parameter, box, /*seed=*/42, kernels);
  return parameter.master;
}

TEST(InitialiseKernel, DrawsTheBitsOfTheHostInEveryLayout) {
  const std::vector<int64_t> shape{37, 19};
  const TensorLayout whole(shape);
  for (const Initialiser& initialiser : {Initialiser{Initialiser::Kind::normal, 1.0},
                                         Initialiser{Initialiser::Kind::truncated_normal, 0.5, -0.7, 0.7}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor all = drawn(shape, initialiser, whole.first_box(), type, nullptr);
      EXPECT_TRUE(same_bits(drawn(shape, initialiser, whole.first_box(), type, &host_kernels()), all));
      for (const TensorLayout& layout : {TensorLayout(shape, {{"dp_shard", 4, 0}}), TensorLayout(shape, {{"tp", 3, 1}}),
                                         TensorLayout(shape, {{"tp", 5, 1}, {"dp_shard", 2, 0}})}) {
        std::vector<int64_t> coordinates(layout.splits().size(), 0);
        for (int64_t i = 0; i < layout.splits()[0].parts; ++i) {
          coordinates[0] = i;
          const Box box = layout.box(coordinates);
          const at::Tensor slice = all.narrow(0, box.offset[0], box.extent[0]).narrow(1, box.offset[1], box.extent[1]);
          EXPECT_TRUE(same_bits(drawn(shape, initialiser, box, type, &host_kernels()), slice));
        }
      }
    }
  }
}

TEST(InitialiseKernel, LeavesNormsAtOneAndEmptyShardsAlone) {
  EXPECT_TRUE(same_bits(drawn({7}, {}, {{0}, {7}}, at::kFloat, &host_kernels()), at::ones({7})));
  const Initialiser normal01{Initialiser::Kind::normal, 1.0};
  EXPECT_EQ(drawn({4, 8}, normal01, {{4, 0}, {0, 8}}, at::kFloat, &host_kernels()).numel(), 0);
}

}  // namespace
}  // namespace titan
