#include "titan/plan/float8_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "titan/base/text.h"
#include "titan/plan/architecture.h"

namespace titan {
namespace {

ModelDescription describe_float8(const std::string& name, const std::string& flavor, ModelOverrideSection sizes = {}) {
  ModelRequest request;
  request.model.name = name;
  request.model.flavor = flavor;
  request.tokenizer_vocabulary = 2000;
  request.model.override_sizes = sizes;
  return describe_model(request);
}

LinearChoice choice_of(const std::vector<LinearChoice>& choices, const std::string& layer) {
  for (const LinearChoice& choice : choices) {
    if (choice.layer == layer) return choice;
  }
  ADD_FAILURE() << "no layer " << layer;
  return {};
}

std::vector<std::string> converted(const std::vector<LinearChoice>& choices) {
  std::vector<std::string> names;
  for (const LinearChoice& choice : choices) {
    if (choice.converted) names.push_back(choice.layer);
  }
  return names;
}

const std::vector<std::string> kBlockLayers{"attention.wq",    "attention.wk",    "attention.wv",   "attention.wo",
                                            "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"};

TEST(Float8Layers, AreTheMatricesOfTheBlocksAndNotTheEmbeddingNorTheOutput) {
  const std::vector<LinearChoice> choices = choose_float8_layers(describe_float8("llama3", "8B"), {}, 1, {});
  EXPECT_EQ(choices.size(), 32 * 7 + 1);
  EXPECT_EQ(converted(choices).size(), 32 * 7);
  for (const std::string& layer : kBlockLayers) EXPECT_TRUE(choice_of(choices, "layers.31." + layer).converted);
  EXPECT_EQ(choice_of(choices, "layers.0.feed_forward.w2").outputs, 4096);
  EXPECT_EQ(choice_of(choices, "layers.0.feed_forward.w2").inputs, 14336);
  EXPECT_NE(choice_of(choices, "output").reason.find("loss"), std::string::npos);
}

TEST(Float8Layers, ATiedOutputIsListedUnderItsOwnName) {
  EXPECT_FALSE(choice_of(choose_float8_layers(describe_float8("llama3_2", "1B"), {}, 1, {}), "output").converted);
}

TEST(Float8Layers, AFilterLeavesEveryLayerWhoseNameHasIt) {
  LinearFloat8Section request;
  request.filter_fqns = {"attention.wk", "layers.1."};
  const auto choices = choose_float8_layers(describe_float8("llama3", "debugmodel"), request, 1, {});
  for (const LinearChoice& choice : choices) {
    const bool named = choice.layer.find("attention.wk") != std::string::npos || choice.layer.starts_with("layers.1.");
    EXPECT_EQ(choice.converted, !named && choice.layer != "output") << choice.layer;
    if (named) {
      EXPECT_TRUE(choice.reason.starts_with("named by filter_fqns \"")) << choice.reason;
    }
  }
}

TEST(Float8Layers, FiltersThatNoNameHasAreFound) {
  const ModelDescription model = describe_float8("llama3", "debugmodel");
  EXPECT_TRUE(idle_filters(model, {"output", "wq", "layers.0", "feed_forward"}).empty());
  EXPECT_EQ(idle_filters(model, {"wq", "wx", "tok_embeddings"}), (std::vector<std::string>{"wx", "tok_embeddings"}));
  EXPECT_TRUE(idle_filters(describe_float8("llama3_2", "1B"), {"output"}).empty());
}

TEST(Float8Layers, AUnitKeptInFloat32StaysAsItIs) {
  const auto choices = choose_float8_layers(describe_float8("llama3", "debugmodel"), {}, 1, {"layers.2"});
  EXPECT_NE(choice_of(choices, "layers.2.attention.wq").reason.find("keep_fp32"), std::string::npos);
  EXPECT_TRUE(choice_of(choices, "layers.3.attention.wq").converted);
}

TEST(Float8Layers, DimensionsThatAreNoMultiplesOf16StayAsTheyAre) {
  // 4 heads of 18: wq is 72 × 72; hidden is a multiple of 16 all the same.
  const ModelDescription odd =
      describe_float8("llama3", "debugmodel", {.dim = 72, .n_heads = 4, .n_kv_heads = 4, .multiple_of = 16});
  for (const LinearChoice& choice : choose_float8_layers(odd, {}, 1, {})) {
    EXPECT_FALSE(choice.converted) << choice.layer;
    if (choice.layer != "output") {
      EXPECT_EQ(choice.reason, "not multiples of 16") << choice.layer;
    }
  }
}

TEST(Float8Layers, WhatEachTensorParallelRankHoldsMustBeMultiplesOf16Too) {
  const ModelDescription model =
      describe_float8("llama3", "debugmodel", {.dim = 64, .n_heads = 8, .n_kv_heads = 4, .multiple_of = 16});
  const auto alone = choose_float8_layers(model, {}, 1, {});
  EXPECT_TRUE(choice_of(alone, "layers.0.attention.wk").converted);
  const auto shared = choose_float8_layers(model, {}, 4, {});
  EXPECT_EQ(choice_of(shared, "layers.0.attention.wk").reason,
            "not multiples of 16 where 4 ranks share it: [8, 64] each");
  EXPECT_TRUE(choice_of(shared, "layers.0.attention.wq").converted);
  EXPECT_TRUE(choice_of(shared, "layers.0.attention.wo").converted) << "16 of its 64 columns";
}

struct SmallCase {
  Float8Recipe recipe;
  int64_t n, k;
  bool is_small;
};

class SmallLayers : public ::testing::TestWithParam<SmallCase> {};

TEST_P(SmallLayers, FollowTorchaosBounds) {
  const SmallCase& one = GetParam();
  ModelDescription model;
  UnitDescription unit;
  unit.name = "layers.0";
  unit.parameters = {{"layers.0.w.weight", {one.n, one.k}, {}}};
  model.units = {unit};
  LinearFloat8Section request;
  request.recipe_name = one.recipe;
  EXPECT_TRUE(choose_float8_layers(model, request, 1, {})[0].converted);
  request.filter_fqns.emplace_back(kSmallLayersFilter);
  EXPECT_EQ(choose_float8_layers(model, request, 1, {})[0].converted, !one.is_small);
}

using enum Float8Recipe;
INSTANTIATE_TEST_SUITE_P(
    Float8, SmallLayers,
    ::testing::Values(SmallCase{tensorwise, 1024, 4096, true}, SmallCase{tensorwise, 1040, 4096, false},
                      SmallCase{tensorwise, 1024, 4112, false}, SmallCase{rowwise, 2048, 16384, true},
                      SmallCase{rowwise, 2064, 4096, false}, SmallCase{rowwise, 8192, 1024, true},
                      SmallCase{rowwise, 8192, 1040, false}, SmallCase{rowwise, 4096, 2048, true},
                      SmallCase{rowwise, 4112, 2048, false}, SmallCase{rowwise, 4096, 2064, false},
                      SmallCase{rowwise_with_gw_hp, 4096, 2048, true}),
    [](const auto& info) { return fmt::format("{}_{}_by_{}", name(info.param.recipe), info.param.n, info.param.k); });

TEST(Float8Lines, NameTheRecipeAndJoinWhatIsAlike) {
  LinearFloat8Section request;
  request.filter_fqns = {"layers.2.attention.wo"};
  const ModelDescription model = describe_float8("llama3", "debugmodel");
  const auto lines = float8_lines(request, choose_float8_layers(model, request, 1, {}));
  EXPECT_EQ(lines[0], "Float8 tensorwise scaled training active");
  EXPECT_EQ(lines[1],
            fmt::format("{} of {} linear layers are converted to float8", model.layers * 7 - 1, model.layers * 7 + 1));
  const std::string all = join(lines, "\n");
  EXPECT_NE(all.find("  float8    attention.wq [256, 256] of layers 0-5"), std::string::npos) << all;
  EXPECT_NE(all.find("  float8    attention.wo [256, 256] of layers 0-1, 3-5"), std::string::npos) << all;
  EXPECT_NE(all.find("  unchanged attention.wo [256, 256] of layers 2: named by filter_fqns"), std::string::npos);
  EXPECT_NE(all.find("  unchanged output [2048, 256]: "), std::string::npos) << all;
  request.recipe_name = Float8Recipe::rowwise;
  EXPECT_EQ(float8_lines(request, choose_float8_layers(model, request, 1, {}))[0],
            "Float8 training active with recipe rowwise");
}

TEST(IdleFloat8Words, SayWhyNoLayerIsConvertedAndWhatToDo) {
  const ModelDescription model = describe_float8("llama3", "debugmodel");
  LinearFloat8Section request;
  EXPECT_FALSE(idle_float8_words(request, choose_float8_layers(model, request, 1, {})));
  request.filter_fqns = {"attention", "feed_forward"};
  const auto choices = choose_float8_layers(model, request, 1, {});
  EXPECT_EQ(
      idle_float8_words(request, choices),
      "float8 is on (model.converters), but none of the 43 linear layers is converted, so nothing runs in float8 "
      "(24: named by filter_fqns \"attention\"; 18: named by filter_fqns \"feed_forward\"; 1: the output layer is "
      "computed together with the loss); leave layers over in quantize.linear.float8.filter_fqns, or take "
      "\"quantize.linear.float8\" out of model.converters");
  const auto lines = float8_lines(request, choices);
  EXPECT_EQ(lines[0], "0 of 43 linear layers are converted to float8") << "and none that calls it active";
  EXPECT_EQ(join(lines, "\n").find("active"), std::string::npos);
}

TEST(IdleFloat8Words, DoNotBlameFiltersThatAreNotThere) {
  const ModelDescription model = describe_float8("llama3", "debugmodel");
  const LinearFloat8Section request;
  const std::vector<std::string> kept{"layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5"};
  const std::string said = *idle_float8_words(request, choose_float8_layers(model, request, 1, kept));
  EXPECT_NE(said.find("42: its unit is kept in float32 by training.keep_fp32"), std::string::npos) << said;
  EXPECT_EQ(said.find("filter_fqns"), std::string::npos) << said;
}

TEST(IdleFloat8Words, CountWhatIsTooSmall) {
  const ModelDescription model = describe_float8("llama3", "debugmodel");
  LinearFloat8Section request;
  request.filter_fqns.emplace_back(kSmallLayersFilter);
  const std::string said = *idle_float8_words(request, choose_float8_layers(model, request, 1, {}));
  EXPECT_NE(said.find("(42: small (auto_filter_small_kn); 1: the output layer"), std::string::npos) << said;
  EXPECT_NE(said.find("quantize.linear.float8.filter_fqns"), std::string::npos) << said;
}

}  // namespace
}  // namespace titan
