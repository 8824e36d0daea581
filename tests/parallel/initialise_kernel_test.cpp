// Weights that a GPU draws are those that the host draws: the kernel, compiled for the host, in every cut of a tensor.
#include <gtest/gtest.h>

#include "support/host_kernels.h"
#include "support/tensors.h"
#include "titan/model/initialise.h"
#include "titan/plan/tensor_layout.h"

namespace titan {
namespace {

at::Tensor drawn(const std::vector<int64_t>& shape, const Initialiser& initialiser, const Box& box, at::ScalarType type,
                 const Kernels* kernels) {
  Parameter parameter({"layers.0.attention.wq.weight", shape, initialiser});
  parameter.master = at::full(box.extent, NAN, at::TensorOptions(type));
  initialise(parameter, box, /*seed=*/42, kernels);
  return parameter.master;
}

TEST(InitialiseKernel, DrawsTheBitsOfTheHostInEveryBox) {
  const std::vector<int64_t> shape{37, 19};
  for (const Initialiser& initialiser : {Initialiser{Initialiser::Kind::normal, 1.0},
                                         Initialiser{Initialiser::Kind::truncated_normal, 0.5, -0.7, 0.7}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Box& box : {TensorLayout(shape).first_box(), Box{{10, 0}, {10, 19}}, Box{{0, 7}, {37, 7}},
                             Box{{19, 12}, {18, 4}}, Box{{30, 0}, {7, 19}}}) {
        EXPECT_TRUE(same_bits(drawn(shape, initialiser, box, type, &host_kernels()),
                              drawn(shape, initialiser, box, type, nullptr)));
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
