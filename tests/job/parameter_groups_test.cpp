#include "titan/job/parameter_groups.h"

#include <gtest/gtest.h>

#include "titan/base/error.h"

namespace titan {
namespace {

const std::vector<std::string> kNames{"tok_embeddings.weight", "layers.0.attention.wq.weight",
                                      "layers.0.attention_norm.weight", "norm.weight", "output.weight"};

ParamGroup pattern(const std::string& match, double lr = 1.0, double decay = 1.0) {
  ParamGroup group{};
  group.match = match;
  group.lr_multiplier = lr;
  group.weight_decay_multiplier = decay;
  return group;
}

std::string refusal(const std::vector<ParamGroup>& patterns) {
  try {
    assign_parameter_groups(kNames, patterns);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    return error.what();
  }
  return "accepted";
}

TEST(ParameterGroups, WithoutPatternsAllShareTheFirstGroup) {
  const auto groups = assign_parameter_groups(kNames, {});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].members, (std::vector<size_t>{0, 1, 2, 3, 4}));
}

TEST(ParameterGroups, APatternTakesItsNamesAndTheRestStays) {
  const auto groups = assign_parameter_groups(kNames, {pattern("norm", 1.0, 0.0), pattern("^output", 0.5)});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].members, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(groups[1].members, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(groups[1].weight_decay_multiplier, 0.0);
  EXPECT_EQ(groups[2].members, (std::vector<size_t>{4}));
  EXPECT_EQ(groups[2].lr_multiplier, 0.5);
  EXPECT_EQ(groups[2].match, "^output");
}

TEST(ParameterGroups, PatternsThatTakeEverythingLeaveTheFirstGroupEmpty) {
  const auto groups = assign_parameter_groups(kNames, {pattern("weight$")});
  EXPECT_TRUE(groups[0].members.empty());
  EXPECT_EQ(groups[1].members.size(), kNames.size());
}

TEST(ParameterGroups, APatternThatMatchesNothingIsAnErrorThatShowsAName) {
  const std::string text = refusal({pattern("nowhere")});
  EXPECT_NE(text.find("\"nowhere\" matches no parameter"), std::string::npos) << text;
  EXPECT_NE(text.find("tok_embeddings.weight"), std::string::npos) << text;
}

TEST(ParameterGroups, NamesOfHuggingFaceAreAnsweredWithThoseOfHere) {
  for (const auto& [match, ours] : std::vector<std::pair<const char*, const char*>>{
           {"layers.*q_proj", "write wq (there q_proj)"},
           {"lm_head", "write output (there lm_head)"},
           {"model.layers", "write layers (there model.layers)"},
           {"^model\\.layers\\.0\\.mlp", "write feed_forward (there mlp), layers (there model.layers)"},
           {"input_layernorm", "write attention_norm (there input_layernorm)"}}) {
    const std::string text = refusal({pattern(match)});
    EXPECT_NE(text.find(ours), std::string::npos) << text;
  }
}

TEST(ParameterGroups, APatternThatMatchesNothingIsAnErrorThatShowsTheNearestNames) {
  const auto near = [](const char* match) { return refusal({pattern(match)}); };
  EXPECT_NE(near("attenton_norm").find("did you mean attention_norm"), std::string::npos) << near("attenton_norm");
  EXPECT_NE(near("attention.wk$").find("did you mean attention.wq"), std::string::npos) << near("attention.wk$");
  EXPECT_NE(near("^tok_embedding.weigth").find("did you mean tok_embeddings.weight"), std::string::npos);
}

TEST(ParameterGroups, AParameterMatchedTwiceIsAnErrorThatNamesBothPatterns) {
  const std::string text = refusal({pattern("norm"), pattern("layers")});
  EXPECT_NE(text.find("layers.0.attention_norm.weight is matched by both \"norm\" and \"layers\""), std::string::npos)
      << text;
}

TEST(ParameterGroups, EveryProblemIsListedAtOnce) {
  const std::string text = refusal({pattern("(unclosed"), pattern("nowhere"), pattern("norm"), pattern("^norm")});
  EXPECT_NE(text.find("\"(unclosed\" is not a regular expression"), std::string::npos) << text;
  EXPECT_NE(text.find("\"nowhere\" matches no parameter"), std::string::npos) << text;
  EXPECT_NE(text.find("norm.weight is matched by both"), std::string::npos) << text;
}

TEST(ParameterGroups, NamesThatTwoPatternsMatchAreCounted) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_FALSE(has(refusal({pattern("^output"), pattern("^output")}), "as "));
  const std::string two = refusal({pattern("norm"), pattern("norm")});
  EXPECT_TRUE(has(two, "\"norm\" and \"norm\", as is one other; make one pattern narrower")) << two;
  const std::string all = refusal({pattern("weight"), pattern("weight")});
  EXPECT_TRUE(has(all, ", as are 4 others; ")) << all;
}

}  // namespace
}  // namespace titan
