#include "titan/train/start_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "titan/base/text.h"

namespace titan {
namespace {

TEST(MemoryTable, ShowsWhatTakesBytesTheSumAndWhatIsOnTheHost) {
  Plan plan;
  plan.memory = {{"parameters", 3 << 20}, {"gradients", 0}, {"activations kept", 1 << 20}};
  EXPECT_EQ(memory_table(plan), (std::vector<std::string>{"  parameters                     3.00 MiB",
                                                          "  activations kept               1.00 MiB",
                                                          "  together                       4.00 MiB"}));
  plan.memory[0].on_host = true;
  EXPECT_EQ(memory_table(plan),
            (std::vector<std::string>{
                "  parameters                     3.00 MiB  host", "  activations kept               1.00 MiB",
                "  together                       4.00 MiB", "  of it on the host              3.00 MiB"}));
}

TEST(MemoryTable, ShowsAValidationThatTakesMoreThanAStepAndNoOther) {
  Plan plan;
  plan.memory = {{"parameters", 3 << 20}, {"activations kept", 1 << 20}};
  const std::vector<std::string> without = memory_table(plan);
  plan.validation_memory = {{"parameters", 3 << 20}, {"validation's forward", 1 << 20}};
  EXPECT_EQ(memory_table(plan), without);
  plan.validation_memory[1].bytes = 2 << 20;
  std::vector<std::string> with = without;
  with.insert(with.end(), {"  validation's forward           2.00 MiB", "  together in validation         5.00 MiB"});
  EXPECT_EQ(memory_table(plan), with);
  plan.memory[0].on_host = plan.validation_memory[0].on_host = true;
  EXPECT_EQ(memory_table(plan).back(), "  of it on the host              3.00 MiB");
}

TEST(ParameterGroupTable, ShowsPatternTensorsParametersAndMultipliers) {
  Parameter a({"a", {1000, 4}, {}}), b({"b", {10}, {}}), c({"c", {6}, {}});
  const std::vector<Parameter*> parameters{&a, &b, &c};
  const std::vector<ParameterGroup> groups{{"", 1, 1, {0}}, {"norm", 0.5, 0, {1, 2}}};
  const std::vector<std::string> lines = parameter_group_table(groups, parameters);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "parameter groups:                          tensors    parameters   lr x   decay x");
  EXPECT_EQ(lines[1], "  (all others)                                   1         4,000      1        1");
  EXPECT_EQ(lines[2], "  norm                                           2            16    0.5        0");
}

Plan float8_plan(const MeshPlace& place, const Float8Request& float8) {
  ModelRequest request;
  request.name = "llama3";
  request.flavor = "debugmodel";
  request.tokenizer_vocabulary = 2000;
  PlanRequest plan;
  plan.sequence_length = 64;
  plan.place = place;
  plan.float8 = float8;
  const ModelFamily& family = *find_model_family("llama3");
  return make_plan(family.describe(request), family, plan);
}

TEST(PrecisionLines, SayWhatIsConvertedAndHowWeightsTravel) {
  const std::string travels = "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=";
  const std::vector<std::string> sharded =
      precision_lines(float8_plan({DeviceMesh({.dp_shard = 2}, 2), 0}, {.gathers = true}));
  EXPECT_EQ(sharded[0], "Float8 tensorwise scaled training active");
  EXPECT_EQ(sharded.back(), travels + "true");
  const std::vector<std::string> single = precision_lines(float8_plan({}, {.gathers = true}));
  EXPECT_EQ(single[single.size() - 2], travels + "false");
  EXPECT_NE(single.back().find("no weights are gathered"), std::string::npos);
  EXPECT_EQ(precision_lines(float8_plan({}, {})).back(), travels + "false");
  Plan plain;
  EXPECT_TRUE(precision_lines(plain).empty());
}

TEST(PrecisionLines, ClaimNothingWhereEveryLayerIsLeftOut) {
  const Float8Request request{.gathers = true, .filters = {"layers."}};
  const MeshPlace place{DeviceMesh({.dp_shard = 2, .tp = 2}, 4), 0};
  const Plan plan = float8_plan(place, request);
  const std::string said = join(precision_lines(plan), "\n");
  EXPECT_EQ(said.find("Swapped"), std::string::npos) << said;
  EXPECT_EQ(said.find("active"), std::string::npos) << said;
  EXPECT_EQ(parallelism_lines(plan)[0], "Applied Tensor Parallelism to the model");
  EXPECT_NE(precision_warning(plan)->find("42: named by filter_fqns \"layers.\""), std::string::npos);
  EXPECT_FALSE(precision_warning(float8_plan(place, {})));
  EXPECT_FALSE(precision_warning(Plan{}));
}

TEST(PrecisionLines, ListEveryLayerWhenAsked) {
  const std::vector<std::string> lines = converted_lines(float8_plan({}, {.filters = {"attention.wo"}}));
  EXPECT_EQ(lines[0], "  layers.0.attention.wq: Float8Linear(256 -> 256)");
  EXPECT_EQ(lines[3], "  layers.0.attention.wo: Linear(256 -> 256)");
  EXPECT_EQ(lines.back(), "  output: Linear(256 -> 2048)");
}

TEST(ParallelismLines, CallFloat8TensorParallelismByItsName) {
  const MeshPlace place{DeviceMesh({.tp = 2}, 2), 0};
  EXPECT_EQ(parallelism_lines(float8_plan(place, {}))[0], "Applied Float8 Tensor Parallelism to the model");
  EXPECT_EQ(parallelism_lines(float8_plan(place, {.recipe = Float8Recipe::rowwise}))[0],
            "Applied Tensor Parallelism to the model");
}

TEST(ParallelismLines, SayWhatATableOfCollectivesSendsPerStep) {
  Plan plan;
  plan.request.place = {DeviceMesh({.dp_replicate = 8}, 8), 0};
  plan.traffic = {{.group = "loss", .ranks = 8, .table = {}}};
  Traffic& reduced = plan.traffic[0].table[static_cast<size_t>(Collective::all_reduce)];
  reduced = {.calls = 1, .bytes = 24};
  EXPECT_EQ(parallelism_lines(plan).back(),
            "  loss           all-reduce       8 ranks      1 call per step, 24 B of tensors; "
            "in a ring each rank sends 42 B");
  reduced.calls = 2;
  EXPECT_NE(parallelism_lines(plan).back().find(" 2 calls per step, "), std::string::npos);
}

TEST(Excerpt, IsOneLineInWhichNothingMovesTheCursor) {
  EXPECT_EQ(excerpt("one\ntwo\tthree\r\x1b[31mred\x7f"), "one two three  [31mred ");
  EXPECT_EQ(excerpt("a\u009b31mb\u2028c\u202ed\u2066e"), "a 31mb c d e");
}

TEST(Excerpt, OrdinaryTextOfAnyScriptIsLeftAlone) {
  const std::string text = "déjà vu · 你好 · שלום · 🦔";
  EXPECT_EQ(excerpt(text), text);
}

TEST(Excerpt, AnIncompleteCharacterBecomesAReplacement) { EXPECT_EQ(excerpt("caf\xc3"), "caf\uFFFD"); }

TEST(Excerpt, LongTextIsCutAtACharacterAndSaysSo) {
  std::string text, expected;
  for (int i = 0; i < 200; ++i) text += "é";
  for (int i = 0; i < 120; ++i) expected += "é";
  EXPECT_EQ(excerpt(text), expected + "…");
  EXPECT_EQ(excerpt(expected), expected);
}

TEST(FirstLoss, IsExplainedOnlyWhereItCannotBeThatOfTheWeightsThatWereMeant) {
  struct Case {
    double loss;
    bool is_trained, is_fresh;
    const char* says;  // empty: nothing
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // ln 2048 = 7.62
  for (const auto& [loss, is_trained, is_fresh, says] : std::vector<Case>{{7.6, false, true, ""},
                                                                          {8.3, false, true, ""},
                                                                          {12, false, true, "too wide"},
                                                                          {4, false, true, "too low"},
                                                                          {4, true, false, ""},
                                                                          {7.6, true, false, "probably wrong"},
                                                                          {30, true, false, "probably wrong"},
                                                                          {7.6, false, false, ""},
                                                                          {kInfinity, true, false, ""}}) {
    const std::optional<std::string> said = explain_first_loss(loss, 2048, is_trained, is_fresh);
    EXPECT_EQ(said.has_value(), *says != '\0') << loss;
    if (!said) continue;
    EXPECT_NE(said->find(says), std::string::npos) << *said;
    EXPECT_NE(said->find("ln V = 7.62"), std::string::npos) << *said;
  }
}

}  // namespace
}  // namespace titan
