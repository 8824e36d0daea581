#include "titan/model/initialise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tensors.h"
#include "titan/base/philox.h"
#include "titan/model/llama/llama.h"

namespace titan {
namespace {

constexpr uint64_t kSeed = 42;

Initialiser truncated(double deviation, double bound) {
  return {Initialiser::Kind::truncated_normal, deviation, -bound, bound};
}

/// The box of a parameter as `initialise` draws it.
at::Tensor drawn(const std::string& name, std::vector<int64_t> shape, const Initialiser& initialiser, const Box& box,
                 uint64_t seed = kSeed, at::ScalarType type = at::kFloat) {
  Parameter parameter({name, shape, initialiser});
  parameter.master = at::full(box.extent, NAN, at::TensorOptions(type));
  initialise(parameter, box, seed);
  return parameter.master;
}

at::Tensor whole(const std::string& name, std::vector<int64_t> shape, const Initialiser& initialiser,
                 uint64_t seed = kSeed) {
  const Box box = TensorLayout(shape).first_box();
  return drawn(name, std::move(shape), initialiser, box, seed);
}

TEST(Initialise, ABoxOfTheTensorIsTheSliceOfTheWholeForEveryLayout) {
  for (const Initialiser& initialiser : {Initialiser{Initialiser::Kind::normal, 1.0}, truncated(0.5, 1.0)}) {
    const std::vector<int64_t> shape{37, 19};
    const at::Tensor all = whole("w", shape, initialiser);
    for (const TensorLayout& layout : {TensorLayout(shape, {{"dp_shard", 4, 0}}), TensorLayout(shape, {{"tp", 3, 1}}),
                                       TensorLayout(shape, {{"tp", 2, 0}, {"dp_shard", 3, 0}}),
                                       TensorLayout(shape, {{"tp", 5, 1}, {"dp_shard", 2, 0}})}) {
      int64_t ranks = 1;
      for (const auto& split : layout.splits()) ranks *= split.parts;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        std::vector<int64_t> coordinates;
        for (int64_t left = rank; const auto& split : layout.splits()) {
          coordinates.push_back(left % split.parts);
          left /= split.parts;
        }
        const Box box = layout.box(coordinates);
        const at::Tensor slice = all.narrow(0, box.offset[0], box.extent[0]).narrow(1, box.offset[1], box.extent[1]);
        EXPECT_TRUE(same_bits(drawn("w", shape, initialiser, box), slice));
      }
    }
  }
}

TEST(Initialise, DependsOnSeedNameAndIndexAndOnNothingElse) {
  const Initialiser normal01{Initialiser::Kind::normal, 1.0};
  const at::Tensor values = whole("w", {50, 8}, normal01);
  {
    const ThreadCount two(2);
    EXPECT_TRUE(same_bits(values, whole("w", {50, 8}, normal01)));
  }
  EXPECT_TRUE(same_bits(values.flatten(), whole("w", {8, 50}, normal01).flatten())) << "the index is row-major";
  for (const at::Tensor& other : {whole("v", {50, 8}, normal01), whole("w", {50, 8}, normal01, kSeed + 1)}) {
    EXPECT_EQ(values.eq(other).sum().item<int64_t>(), 0);
  }
  EXPECT_EQ(values[7][3].item<float>(), static_cast<float>(initial_value(normal01, kSeed, name_key("w"), 7 * 8 + 3)));
}

TEST(Initialise, Bf16MastersAreTheRoundedFp32Values) {
  const Initialiser normal01{Initialiser::Kind::normal, 1.0};
  const Box box{{0, 0}, {9, 5}};
  EXPECT_TRUE(same_bits(drawn("w", {9, 5}, normal01, box, kSeed, at::kBFloat16),
                        drawn("w", {9, 5}, normal01, box).to(at::kBFloat16)));
}

TEST(Initialise, NormalNumbersHaveTheirMeanDeviationAndTails) {
  const at::Tensor x = as_double(whole("w", {1000, 400}, {Initialiser::Kind::normal, 0.5}));
  const double n = 400'000;
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 5 * 0.5 / std::sqrt(n));
  EXPECT_NEAR(x.std().item<double>(), 0.5, 5 * 0.5 / std::sqrt(2 * n));
  EXPECT_NEAR(x.abs().gt(0.5).to(at::kDouble).mean().item<double>(), 0.31731, 0.004);
  EXPECT_NEAR(x.abs().gt(1.5).to(at::kDouble).mean().item<double>(), 0.0027, 0.0004);
  EXPECT_NEAR((x.narrow(1, 0, 399) * x.narrow(1, 1, 399)).mean().item<double>(), 0.0, 5 * 0.25 / std::sqrt(n))
      << "neighbours do not depend on each other";
}

TEST(Initialise, TruncatedNumbersStayInsideTheirBoundsAndKeepTheShapeBetween) {
  const double deviation = 0.25;
  const at::Tensor x = as_double(whole("output.weight", {1000, 400}, truncated(deviation, 0.25)));
  EXPECT_LE(x.abs().max().item<double>(), 0.25);
  EXPECT_GT(x.abs().max().item<double>(), 0.2499);
  // The variance of N(0, 1) cut at ±1 is 1 − 2·φ(1)/(2Φ(1) − 1) = 0.29112.
  EXPECT_NEAR(x.var().item<double>() / (deviation * deviation), 0.29112, 0.004);
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 5 * 0.135 / std::sqrt(400'000.0));
}

TEST(Initialise, OnesAreOnes) { EXPECT_TRUE(same_bits(drawn("norm.weight", {7}, {}, {{0}, {7}}), at::ones({7}))); }

ModelRequest request_of(const std::string& name, const std::string& flavor) {
  ModelRequest request;
  request.model.name = name;
  request.model.flavor = flavor;
  return request;
}

std::map<std::string, Initialiser> initialisers(const ModelRequest& request) {
  std::map<std::string, Initialiser> result;
  for (const UnitDescription& unit : describe_model(request).units) {
    for (const ParameterSpec& spec : unit.parameters) result[spec.name] = spec.initialiser;
  }
  return result;
}

void expect_truncated(const Initialiser& initialiser, double deviation, double bound) {
  EXPECT_EQ(initialiser.kind, Initialiser::Kind::truncated_normal);
  EXPECT_NEAR(initialiser.standard_deviation, deviation, 1e-12);
  EXPECT_NEAR(initialiser.upper, bound, 1e-12);
  EXPECT_NEAR(initialiser.lower, -bound, 1e-12);
}

TEST(LlamaInitialisation, FollowsTheTableOfDistributions) {
  const auto of = initialisers(request_of("llama3", "8B"));
  EXPECT_EQ(of.at("tok_embeddings.weight").kind, Initialiser::Kind::normal);
  EXPECT_EQ(of.at("tok_embeddings.weight").standard_deviation, 1.0);
  expect_truncated(of.at("output.weight"), std::pow(4096, -0.5), 3 * std::pow(4096, -0.5));
  EXPECT_EQ(of.at("norm.weight").kind, Initialiser::Kind::ones);
  EXPECT_EQ(of.at("layers.3.ffn_norm.weight").kind, Initialiser::Kind::ones);
  for (int64_t layer : {0, 3, 31}) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const double deep = 0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1));
    for (const char* name : {"attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"}) {
      expect_truncated(of.at(prefix + name + ".weight"), 0.02, 2.0);
    }
    for (const char* name : {"attention.wo", "feed_forward.w2", "feed_forward.w3"}) {
      expect_truncated(of.at(prefix + name + ".weight"), deep, 2.0);
    }
  }
}

TEST(LlamaInitialisation, ATiedMatrixBeginsAsTheOutputLayerDoes) {
  const auto of = initialisers(request_of("llama3_2", "1B"));
  EXPECT_EQ(of.count("output.weight"), 0u);
  expect_truncated(of.at("tok_embeddings.weight"), std::pow(2048, -0.5), 3 * std::pow(2048, -0.5));
}

}  // namespace
}  // namespace titan
