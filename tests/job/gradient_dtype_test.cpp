// What training.gradient_dtype = "bfloat16" does not go with, each in a sentence of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/config_text.h"
#include "titan/base/text.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

std::vector<std::string> dtype_problems(int64_t world, const std::string& training, const std::string& more = "") {
  const std::vector<ConfigCheck> checks{check_contradictions, [world](const JobConfig& config, const Origins& origins) {
                                          return world_problems(config, origins, world);
                                        }};
  const std::string text = "[training]\ngradient_dtype = \"bfloat16\"\n" + training + more;
  std::vector<std::string> lines =
      split(format_problems(load_config_text(Schema(), text, "job.toml", {}, checks).problems), '\n');
  std::erase(lines, "");
  return lines;
}

/// The only problem of a job, without its place and the option's name.
std::string dtype_problem(int64_t world, const std::string& training, const std::string& more = "") {
  const std::vector<std::string> problems = dtype_problems(world, training, more);
  EXPECT_EQ(problems.size(), 1u) << join(problems, "\n");
  const std::string begin = "job.toml:2:18: training.gradient_dtype = \"bfloat16\" does not go with ";
  if (problems.empty() || !problems[0].starts_with(begin)) return join(problems, "\n");
  return problems[0].substr(begin.size());
}

TEST(GradientDtype, GoesWithOneProcessAndOneMicrobatchAStep) {
  for (const char* fitting :
       {"", "local_batch_size = 4\nglobal_batch_size = 4\n", "dtype = \"bfloat16\"\n",
        "weight_gradient_dtype = \"bfloat16\"\nspike_guard = \"skip\"\n",
        "[optimizer]\nearly_step_in_backward = true\n", "[optimizer]\nname = \"Muon\"\nstate_dtype = \"bfloat16\"\n",
        "[optimizer]\noffload = true\n", "[activation_checkpoint]\noffload = true\n"}) {
    EXPECT_EQ(join(dtype_problems(1, fitting), "\n"), "") << fitting;
  }
}

TEST(GradientDtype, IsRefusedWhereMicrobatchesAddUpTheirGradients) {
  EXPECT_EQ(
      dtype_problem(1, "local_batch_size = 8\nglobal_batch_size = 32\n"),
      "training.global_batch_size = 32 and training.local_batch_size = 8: a step adds up the gradients of several "
      "microbatches, in fp32; leave it at \"float32\", or make the step one microbatch "
      "(training.global_batch_size = 8)");
  EXPECT_EQ(dtype_problem(2, "", "[parallelism]\npipeline_parallel_degree = 2\n"),
            "parallelism.pipeline_parallel_degree = 2: a stage adds up the gradients of several microbatches, in fp32; "
            "leave it at \"float32\", or train with one process");
}

TEST(GradientDtype, IsRefusedWhereRanksAddUpTheirGradients) {
  const std::string why = ": ranks add up their gradients, in fp32; leave it at \"float32\", or train with one process";
  for (const char* degree : {"data_parallel_replicate_degree", "data_parallel_shard_degree", "context_parallel_degree",
                             "tensor_parallel_degree"}) {
    EXPECT_EQ(dtype_problem(2, "", fmt::format("[parallelism]\n{} = 2\n", degree)),
              fmt::format("parallelism.{} = 2{}", degree, why));
  }
  EXPECT_EQ(dtype_problem(4, ""), "parallelism.data_parallel_shard_degree = -1, which comes to 4" + why);
}

TEST(GradientDtype, IsRefusedWithWhatNeedsGradientsInFp32) {
  EXPECT_EQ(
      dtype_problem(1, "mixed_precision_param = \"float32\"\n"),
      "training.mixed_precision_param = \"float32\": blocks that compute in fp32 have gradients in fp32; leave it "
      "at \"float32\", or compute in bfloat16");
  EXPECT_EQ(dtype_problem(1, "enable_cpu_offload = true\n"),
            "training.enable_cpu_offload = true: gradients are copied to the host in fp32; leave it at "
            "\"float32\", or keep the weights on the device (optimizer.offload = true moves the optimizer's states "
            "alone)");
  EXPECT_EQ(
      dtype_problem(1, "", "[debug]\ngroups_of_one = true\n"),
      "debug.groups_of_one = true: communicators of one rank add up gradients as those of several do, in fp32; leave "
      "it at \"float32\", or set that to false");
}

TEST(GradientDtype, IsRefusedForAllReasonsTogether) {
  EXPECT_EQ(dtype_problems(4, "mixed_precision_param = \"float32\"\nenable_cpu_offload = true\n",
                           "[parallelism]\ntensor_parallel_degree = 2\n")
                .size(),
            4u);
  EXPECT_EQ(
      dtype_problems(1, "mixed_precision_param = \"float32\"\nlocal_batch_size = 2\nglobal_batch_size = 6\n").size(),
      2u);
}

}  // namespace
}  // namespace titan
