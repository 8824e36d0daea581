#include "titan/estimate/plan_report.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/small_plan.h"
#include "titan/base/text.h"
#include "titan/plan/architecture.h"

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

Plan float8_plan(const MeshPlace& place, const LinearFloat8Section& float8) {
  ModelRequest request;
  request.model.name = "llama3";
  request.model.flavor = "debugmodel";
  request.tokenizer_vocabulary = 2000;
  PlanRequest plan = plain_plan();
  plan.sequence_length = 64;
  plan.place = place;
  plan.float8 = float8;
  return make_plan(describe_model(request), plan);
}

TEST(PrecisionLines, SayWhatIsConvertedAndHowWeightsTravel) {
  const std::string travels = "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=";
  const std::vector<std::string> sharded =
      precision_lines(float8_plan({DeviceMesh({.dp_shard = 2}, 2), 0}, {.enable_fsdp_float8_all_gather = true}));
  EXPECT_EQ(sharded[0], "Float8 tensorwise scaled training active");
  EXPECT_EQ(sharded.back(), travels + "true");
  const std::vector<std::string> single = precision_lines(float8_plan({}, {.enable_fsdp_float8_all_gather = true}));
  EXPECT_EQ(single[single.size() - 2], travels + "false");
  EXPECT_NE(single.back().find("no weights are gathered"), std::string::npos);
  EXPECT_EQ(precision_lines(float8_plan({}, {})).back(), travels + "false");
  Plan plain;
  EXPECT_TRUE(precision_lines(plain).empty());
}

TEST(PrecisionLines, ClaimNothingWhereEveryLayerIsLeftOut) {
  const LinearFloat8Section request{.enable_fsdp_float8_all_gather = true, .filter_fqns = {"layers."}};
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
  const std::vector<std::string> lines = converted_lines(float8_plan({}, {.filter_fqns = {"attention.wo"}}));
  EXPECT_EQ(lines[0], "  layers.0.attention.wq: Float8Linear(256 -> 256)");
  EXPECT_EQ(lines[3], "  layers.0.attention.wo: Linear(256 -> 256)");
  EXPECT_EQ(lines.back(), "  output: Linear(256 -> 2048)");
}

TEST(ParallelismLines, CallFloat8TensorParallelismByItsName) {
  const MeshPlace place{DeviceMesh({.tp = 2}, 2), 0};
  EXPECT_EQ(parallelism_lines(float8_plan(place, {}))[0], "Applied Float8 Tensor Parallelism to the model");
  EXPECT_EQ(parallelism_lines(float8_plan(place, {.recipe_name = Float8Recipe::rowwise}))[0],
            "Applied Tensor Parallelism to the model");
}

TEST(ParallelismLines, SayWhatATableOfCollectivesSendsPerStep) {
  Plan plan;
  plan.request.place = {DeviceMesh({.dp_replicate = 8}, 8), 0};
  plan.traffic = {{.communicator = "loss", .ranks = 8, .table = {}}};
  Traffic& reduced = plan.traffic[0].table[static_cast<size_t>(Collective::all_reduce)];
  reduced = {.calls = 1, .bytes = 24};
  EXPECT_EQ(parallelism_lines(plan).back(),
            "  loss           all-reduce       8 ranks      1 call per step, 24 B of tensors; "
            "in a ring each rank sends 42 B");
  reduced.calls = 2;
  EXPECT_NE(parallelism_lines(plan).back().find(" 2 calls per step, "), std::string::npos);
  reduced = {};
  plan.traffic[0].table[static_cast<size_t>(Collective::permute)] = {.calls = 1, .bytes = 24};
  const std::string permuted = parallelism_lines(plan).back();
  EXPECT_TRUE(permuted.ends_with("24 B of tensors; this rank sends 24 B")) << permuted;
}

}  // namespace
}  // namespace titan
