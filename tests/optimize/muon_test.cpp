#include "titan/optimize/muon.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/optimizer_options.h"
#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

constexpr NewtonSchulz kPublished{{3.4445, -4.775, 2.0315}, 5, 1e-7};

/// The iteration as its paper writes it, in float64 and with whole products.
at::Tensor plain_iteration(const at::Tensor& matrix, const NewtonSchulz& iteration) {
  const auto [a, b, c] = iteration.coefficients;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = as_double(tall ? matrix.t() : matrix);
  x = x / x.norm().clamp_min(iteration.eps);
  for (int64_t step = 0; step < iteration.steps; ++step) {
    const at::Tensor gram = x.mm(x.t());
    x = a * x + (b * gram + c * gram.mm(gram)).mm(x);
  }
  return tall ? x.t() : x;
}

class Orthogonalised : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(Orthogonalised, IsThePlainIterationThoughOnlyHalfOfEachSquareIsComputed) {
  const at::Tensor matrix = normal(GetParam(), 1);
  const at::Tensor result = orthogonalised(matrix, kPublished);
  EXPECT_TRUE(near(result, plain_iteration(matrix, kPublished), 1e-5));
  EXPECT_TRUE(same_bits(result, orthogonalised(matrix.clone(), kPublished)));
  // Each of the 15 products rounds its result to 8 bits. The polynomial's slope is at most 3.4445, and steps that
  // follow contract errors along large singular values and carry them along small ones.
  EXPECT_TRUE(near(orthogonalised(matrix.to(at::kBFloat16), kPublished), plain_iteration(matrix, kPublished), 0.08));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Orthogonalised,
                         ::testing::Values(std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 9},
                                           std::vector<int64_t>{7, 3}, std::vector<int64_t>{64, 64},
                                           std::vector<int64_t>{127, 400}, std::vector<int64_t>{256, 256},
                                           std::vector<int64_t>{389, 260}, std::vector<int64_t>{1100, 300},
                                           std::vector<int64_t>{600, 1800}, std::vector<int64_t>{1100, 1030}));

TEST(NewtonSchulzIteration, BringsSingularValuesToOneAndKeepsItsVectors) {
  // Singular values from 1 to 0.05 of the largest, which the published coefficients bring between 0.6 and 1.25.
  const auto [u, s, vh] = at::linalg_svd(normal({60, 90}, 2).to(at::kDouble), /*full_matrices=*/false);
  const at::Tensor values = at::linspace(1, 0.05, 60, at::kDouble);
  const at::Tensor matrix = u.mm(values.diag()).mm(vh).to(at::kFloat);
  const at::Tensor inside = as_double(u).t().mm(as_double(orthogonalised(matrix, kPublished))).mm(vh.t());
  const at::Tensor found = inside.diag();
  EXPECT_GT(found.min().item<double>(), 0.6);
  EXPECT_LT(found.max().item<double>(), 1.25);
  EXPECT_LT((inside - found.diag()).abs().max().item<double>(), 1e-5);
}

TEST(NewtonSchulzIteration, HasTheSameBitsWithEveryNumberOfThreadsAloneAndAmongOthers) {
  // The last two have more than 2²⁰ elements: threads share the products of one matrix instead of the matrices.
  const std::vector<std::vector<int64_t>> shapes{{1, 9},      {127, 400},  {256, 256}, {389, 260},
                                                 {640, 1000}, {2100, 520}, {600, 2000}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> matrices, expected;
    for (size_t i = 0; i < shapes.size(); ++i) matrices.push_back(normal(shapes[i], 20 + i, type));
    for (const int threads : {1, 2, 3, 4}) {
      const ThreadCount count(threads);
      const std::vector<at::Tensor> together = orthogonalised(matrices, kPublished);
      if (expected.empty()) expected = together;
      for (size_t i = 0; i < matrices.size(); ++i) {
        EXPECT_TRUE(same_bits(together[i], expected[i])) << type << " " << matrices[i].sizes() << ", " << threads;
        if (matrices[i].numel() > 700'000 && threads == 1) continue;  // slow, and one thread has nothing to share
        EXPECT_TRUE(same_bits(orthogonalised(matrices[i], kPublished), expected[i]))
            << type << " " << matrices[i].sizes() << " alone, " << threads;
      }
    }
  }
}

TEST(NewtonSchulzIteration, LeavesAZeroMatrixZeroAndRefusesWhatIsNoMatrix) {
  EXPECT_EQ(orthogonalised(at::zeros({4, 6}), kPublished).abs().sum().item<double>(), 0);
  for (const at::Tensor& wrong : {at::zeros({4}), at::zeros({2, 2, 2}), at::zeros({2, 2}, at::kDouble)}) {
    try {
      orthogonalised(wrong, kPublished);
      FAIL() << wrong.sizes();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bug);
      EXPECT_NE(std::string(error.what()).find(wrong.dim() == 1 ? "[4]" : "[2, 2"), std::string::npos) << error.what();
    }
  }
}

TEST(LargestSingularValue, IsThatOfTheDecomposition) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 5}, {40, 40}, {90, 30}, {30, 90}}) {
    const at::Tensor matrix = orthogonalised(normal(shape, 3), kPublished);
    const double expected = at::linalg_svdvals(as_double(matrix)).max().item<double>();
    const double found = largest_singular_value(matrix).item<double>();
    EXPECT_LE(found, expected * (1 + 1e-5));
    EXPECT_GE(found, expected * 0.98);
  }
  EXPECT_EQ(largest_singular_value(at::zeros({3, 4})).item<double>(), 0);
}

/// Two matrices, an embedding that AdamW steps, and a norm.
struct Model {
  explicit Model(at::ScalarType master = at::kFloat, at::ScalarType gradient = at::kFloat) {
    const std::vector<std::vector<int64_t>> shapes{{20, 12}, {12, 8}, {8, 24}, {8}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      owned.push_back(std::make_unique<Parameter>(ParameterSpec{"p" + std::to_string(i), shapes[i], {}}));
      owned.back()->master = normal(shapes[i], 10 + i, master, 0.1);
      owned.back()->gradient_shard = at::zeros(shapes[i], gradient);
      all.push_back(owned.back().get());
    }
  }
  void draw_gradients(int64_t step) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->gradient_shard.copy_(normal(all[i]->spec().shape, 1000 * static_cast<uint64_t>(step) + i));
    }
  }
  StepControl control(double max_norm = 0) const { return control_step(all, max_norm, at::zeros({}, at::kDouble)); }

  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> all;
};

const std::vector<bool> kByMuon{false, true, true, false};
const std::vector<ParameterGroup> kGroups{{"", 1, 1, {0, 1, 3}}, {"p2", 0.5, 2, {2}}};

OptimizerSection muon_options(MuonRate rate = MuonRate::original, bool nesterov = true) {
  OptimizerSection options = optimizer_options();
  options.name = OptimizerKind::muon;
  options.muon.dtype = ElementType::float32;
  options.muon.adjust_lr_fn = rate;
  options.muon.nesterov = nesterov;
  return options;
}

/// muon.h's formula in float64.
struct Float64Muon {
  explicit Float64Muon(const at::Tensor& start) : p(as_double(start).clone()), m(at::zeros_like(p)) {}

  void step(double lr, double decay, double clip, const at::Tensor& gradient, const MuonSection& o) {
    const at::Tensor g = as_double(gradient) * clip;
    m = o.momentum * m + (1 - o.momentum) * g;
    const at::Tensor u = o.nesterov ? o.momentum * m + (1 - o.momentum) * g : m;
    const auto rows = static_cast<double>(p.size(0)), columns = static_cast<double>(p.size(1));
    const double ratio = o.adjust_lr_fn == MuonRate::original ? std::sqrt(std::max(1.0, rows / columns))
                                                              : 0.2 * std::sqrt(std::max(rows, columns));
    p = p * (1 - lr * decay) - lr * ratio * plain_iteration(u, kPublished);
  }

  at::Tensor p, m;
};

class Muon : public ::testing::TestWithParam<std::tuple<MuonRate, bool>> {};

TEST_P(Muon, SeveralStepsFollowTheFloat64FormulaWithMultipliersAndClipping) {
  const OptimizerSection options = muon_options(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Model model;
  MuonOptimizer optimizer(model.all, kGroups, kByMuon, options);
  std::vector<Float64Muon> expected;
  for (const Parameter* parameter : model.all) {
    if (parameter->spec().shape.size() == 2) expected.emplace_back(parameter->master);
  }
  for (int64_t t = 1; t <= 5; ++t) {
    model.draw_gradients(t);
    const StepControl control = model.control(/*max_norm=*/1.0);
    const double share = 1 / static_cast<double>(t);  // of the schedule
    optimizer.step(t, options.lr * share, control);
    for (size_t i = 1; i <= 2; ++i) {
      const ParameterGroup& group = kGroups[i - 1];
      expected[i].step(options.muon.lr * share * group.lr_multiplier,
                       options.weight_decay * group.weight_decay_multiplier, control.clip.item<double>(),
                       model.all[i]->gradient_shard, options.muon);
      EXPECT_TRUE(near(model.all[i]->master, expected[i].p, 1e-5)) << t << " " << i;
      EXPECT_TRUE(near(optimizer.moments(i)[0], expected[i].m, 1e-6)) << t << " " << i;
      EXPECT_FALSE(optimizer.applied_steps(i).defined());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Muon,
                         ::testing::Combine(::testing::Values(MuonRate::original, MuonRate::match_rms_adamw),
                                            ::testing::Bool()));

TEST(Muon, AGradientInBf16GivesTheBitsThatTheSameOneInFp32Gives) {
  Model wide, narrow(at::kFloat, at::kBFloat16);
  MuonOptimizer of_wide(wide.all, kGroups, kByMuon, muon_options());
  MuonOptimizer of_narrow(narrow.all, kGroups, kByMuon, muon_options());
  for (int64_t t = 1; t <= 3; ++t) {
    narrow.draw_gradients(t);
    for (size_t i = 0; i < wide.all.size(); ++i) wide.all[i]->gradient_shard.copy_(narrow.all[i]->gradient_shard);
    of_wide.step(t, 1e-3, wide.control(/*max_norm=*/1.0));
    of_narrow.step(t, 1e-3, narrow.control(/*max_norm=*/1.0));
  }
  for (size_t i = 0; i < wide.all.size(); ++i) {
    EXPECT_TRUE(same_bits(narrow.all[i]->master, wide.all[i]->master)) << i;
    EXPECT_TRUE(same_bits(of_narrow.moments(i)[0], of_wide.moments(i)[0])) << i;
  }
}

TEST(Muon, StepsTheRestAsAdamWDoesBitForBit) {
  Model model, same;
  MuonOptimizer optimizer(model.all, kGroups, kByMuon, muon_options());
  AdamOptimizer adam(same.all, kGroups, optimizer_options());
  for (int64_t t = 1; t <= 3; ++t) {
    model.draw_gradients(t), same.draw_gradients(t);
    optimizer.step(t, 1e-3, model.control());
    adam.step(t, 1e-3, same.control());
  }
  for (const size_t i : {0, 3}) {
    EXPECT_TRUE(same_bits(model.all[i]->master, same.all[i]->master)) << i;
    EXPECT_TRUE(same_bits(optimizer.moments(i)[1], adam.moments(i)[1])) << i;
    EXPECT_TRUE(same_bits(optimizer.applied_steps(i), adam.applied_steps(i))) << i;
  }
  EXPECT_EQ(optimizer.state_bytes(), 4 * (2 * (20 * 12 + 8) + 12 * 8 + 8 * 24)) << "one moment of each matrix";
}

TEST(Muon, ASkippedStepChangesNothing) {
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    OptimizerSection options = muon_options();
    options.state_dtype = type;
    Model model(type == ElementType::float32 ? at::kFloat : at::kBFloat16);
    MuonOptimizer optimizer(model.all, kGroups, kByMuon, options);
    model.draw_gradients(1);
    optimizer.step(1, 1e-3, model.control());
    const at::Tensor weight = model.all[1]->master.clone(), momentum = optimizer.moments(1)[0].clone();
    model.all[1]->gradient_shard.fill_(std::nan(""));
    optimizer.step(2, 1e-3, model.control());
    EXPECT_TRUE(same_bits(model.all[1]->master, weight));
    EXPECT_TRUE(same_bits(optimizer.moments(1)[0], momentum));
  }
}

TEST(Muon, StatesInBf16AreRoundedOnceAndStochastically) {
  OptimizerSection options = muon_options();
  options.state_dtype = ElementType::bfloat16;
  Model model(at::kBFloat16);
  const at::Tensor before = model.all[1]->master.to(at::kFloat);
  Model wide;
  for (size_t i = 0; i < wide.all.size(); ++i) wide.all[i]->master.copy_(model.all[i]->master);
  MuonOptimizer optimizer(model.all, kGroups, kByMuon, options, /*rounding_seed=*/7);
  MuonOptimizer exact(wide.all, kGroups, kByMuon, muon_options());
  model.draw_gradients(1), wide.draw_gradients(1);
  optimizer.step(1, 1e-3, model.control());
  exact.step(1, 1e-3, wide.control());
  for (const auto& [kept, fresh] : {std::pair(model.all[1]->master, wide.all[1]->master),
                                    std::pair(optimizer.moments(1)[0], exact.moments(1)[0])}) {
    EXPECT_EQ(kept.scalar_type(), at::kBFloat16);
    const at::Tensor off = (as_double(kept) - as_double(fresh)).abs();
    EXPECT_LE((off / as_double(fresh).abs().clamp_min(1e-30)).max().item<double>(), 1.0 / 128);
    EXPECT_GT(off.max().item<double>(), 0);
  }
}

TEST(Muon, MomentaOnTheHostGiveTheSameBits) {
  const auto arena = [] { return std::make_shared<MemoryArena>(at::Device(at::kCPU)); };
  const auto host = arena(), device = arena();
  Model model, same;
  MuonOptimizer offloaded(model.all, kGroups, kByMuon, muon_options(), 0, std::make_shared<HostOffload>(host, device));
  MuonOptimizer resident(same.all, kGroups, kByMuon, muon_options());
  const int64_t held = host->held_bytes();
  EXPECT_EQ(held, offloaded.state_bytes());
  for (int64_t t = 1; t <= 3; ++t) {
    model.draw_gradients(t), same.draw_gradients(t);
    offloaded.step(t, 1e-3, model.control());
    resident.step(t, 1e-3, same.control());
  }
  for (size_t i = 0; i < model.all.size(); ++i) {
    EXPECT_TRUE(same_bits(model.all[i]->master, same.all[i]->master)) << i;
    for (size_t m = 0; m < resident.moments(i).size(); ++m) {
      EXPECT_TRUE(same_bits(offloaded.moments(i)[m], resident.moments(i)[m])) << i;
    }
  }
  EXPECT_EQ(device->held_bytes(), 0) << "nothing stays on the device between steps";
}

TEST(Muon, MomentaOnTheHostMoveOnceInWhateverOrderMatricesAreCollected) {
  const auto arena = [] { return std::make_shared<MemoryArena>(at::Device(at::kCPU)); };
  const auto device = arena();
  const auto offload = std::make_shared<HostOffload>(arena(), device);
  Model model, same;
  MuonOptimizer offloaded(model.all, kGroups, kByMuon, muon_options(), 0, offload);
  MuonOptimizer resident(same.all, kGroups, kByMuon, muon_options());
  for (int64_t t = 1; t <= 3; ++t) {
    model.draw_gradients(t), same.draw_gradients(t);
    offload->reset();
    for (const size_t i : {2, 1}) {  // not the order of the parameters
      const at::Tensor part = offloaded.matrix_part(*model.all[i], t, model.control());
      offloaded.take_matrix_update(*model.all[i],
                                   offloaded.matrix_updates(std::span(&model.all[i], 1), std::span(&part, 1))[0]);
    }
    offloaded.step(t, 1e-3, model.control());
    resident.step(t, 1e-3, same.control());
    EXPECT_EQ(offload->to_device_bytes(), offloaded.state_bytes()) << t;
    EXPECT_EQ(offload->to_host_bytes(), offloaded.state_bytes()) << t;
  }
  for (const size_t i : {1, 2}) {
    EXPECT_TRUE(same_bits(model.all[i]->master, same.all[i]->master)) << i;
    EXPECT_TRUE(same_bits(offloaded.moments(i)[0], resident.moments(i)[0])) << i;
  }
  EXPECT_EQ(device->held_bytes(), 0) << "nothing stays on the device between steps";
}

TEST(Muon, PartsThatOtherRanksHoldAreUpdatedBeforeTheStep) {
  Model model;
  MuonOptimizer optimizer(model.all, kGroups, kByMuon, muon_options());
  Parameter& matrix = *model.all[1];
  matrix.master = matrix.master.slice(0, 0, 6).clone();
  Model cut;
  cut.all[1]->master = matrix.master;
  cut.all[1]->gradient_shard = at::zeros({6, 8});
  MuonOptimizer of_part(cut.all, kGroups, kByMuon, muon_options());
  EXPECT_THROW(of_part.step(1, 1e-3, cut.control()), InvariantError) << "the others' parts are missing";
  of_part.take_matrix_update(*cut.all[1], at::ones({6, 8}));
  const at::Tensor before = cut.all[1]->master.clone();
  const OptimizerSection options = muon_options();
  of_part.step(1, options.lr, cut.control());
  EXPECT_TRUE(near(cut.all[1]->master, before * (1 - 0.02 * 0.1) - 0.02 * std::sqrt(1.5), 1e-6));
}

}  // namespace
}  // namespace titan
