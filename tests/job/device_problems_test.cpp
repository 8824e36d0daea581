#include "titan/job/device_problems.h"

#include <gtest/gtest.h>

#include "support/config_text.h"

namespace titan {
namespace {

DeviceFacts cpu() { return {.kind = DeviceFacts::Kind::cpu}; }
DeviceFacts gpu(const char* name, int capability, const char* architectures = "80-real,90a-real") {
  return {.kind = DeviceFacts::Kind::gpu, .name = name, .capability = capability, .architectures = architectures};
}
const DeviceFacts kH100 = gpu("NVIDIA H100", 90);

std::string problems_on(const DeviceFacts& facts, const std::string& text) {
  const std::vector<ConfigCheck> checks{
      [&](const JobConfig& config, const Origins& origins) { return device_problems(config, origins, facts); }};
  return format_problems(load_config_text(Schema(), text, "job.toml", {}, checks).problems);
}

constexpr const char* kFloat8 = "[model]\nconverters = [\"quantize.linear.float8\"]\n";

TEST(DeviceProblems, NothingIsSaidOfADeviceThatIsNotKnown) {
  const std::string everything = std::string(kFloat8) +
                                 "[training]\ndevice = \"cuda\"\nenable_cpu_offload = true\n"
                                 "[debug]\nattention_kernel = \"cudnn\"\ndeterministic = true\nsync_check = true\n"
                                 "[optimizer]\nearly_step_in_backward = true\n"
                                 "[parallelism]\ntensor_parallel_degree = 16\nenable_async_tensor_parallel = true\n";
  EXPECT_EQ(problems_on({}, everything), "");
  const std::string on_gpu = problems_on({.kind = DeviceFacts::Kind::gpu, .host_ranks = 8}, everything);
  EXPECT_EQ(std::count(on_gpu.begin(), on_gpu.end(), '\n'), 3) << on_gpu;
}

TEST(DeviceProblems, AGpuThatIsAskedForMustBeThere) {
  const char* cuda = "[training]\ndevice = \"cuda\"\n";
  EXPECT_EQ(problems_on(cpu(), cuda),
            "job.toml:2:10: training.device = \"cuda\", but this program sees no CUDA device; say training.device = "
            "\"cpu\", or check the driver (nvidia-smi) and that titan was built with a CUDA compiler\n");
  EXPECT_EQ(problems_on(cpu(), ""), "");
  EXPECT_EQ(problems_on(kH100, cuda), "");
}

TEST(DeviceProblems, GpusThatCannotBeUsedAreAProblemUnlessTheCpuIsAskedFor) {
  const DeviceFacts blocked{.obstacle = "the driver is too old"};
  EXPECT_EQ(problems_on(blocked, "[training]\ndevice = \"auto\"\n"),
            "job.toml:2:10: the driver is too old; or say training.device = \"cpu\"\n");
  EXPECT_NE(problems_on(blocked, ""), "");
  EXPECT_EQ(problems_on(blocked, "[training]\ndevice = \"cpu\"\n"), "");
}

TEST(DeviceProblems, AMemoryEstimateNeedsADeviceAndNothingOfIt) {
  const std::string estimate = std::string(kFloat8) + "[memory_estimation]\nenable = true\n";
  EXPECT_EQ(problems_on(gpu("NVIDIA A100", 80), estimate), "");
  EXPECT_NE(problems_on(cpu(), estimate + "[training]\ndevice = \"cuda\"\n"), "");
}

TEST(DeviceProblems, KernelsMustBeBuiltForTheGpuAndTheProblemSaysHow) {
  EXPECT_EQ(problems_on(gpu("NVIDIA B200", 100, "80-real,100-real"), ""), "");
  EXPECT_EQ(problems_on(gpu("NVIDIA B200", 100, ""), ""), "");
  EXPECT_EQ(problems_on(gpu("NVIDIA B200", 100), "[training]\ndevice = \"auto\"\n"),
            "job.toml:2:10: the kernels of this program are built for 80-real,90a-real, and NVIDIA B200 has compute "
            "capability 10.0; build it with CUDAARCHS=100-real, or say training.device = \"cpu\"\n");
}

TEST(DeviceProblems, Float8NeedsAGpuThatMultipliesIt) {
  for (const int capable : {89, 90, 100, 120})
    EXPECT_EQ(problems_on(gpu("it", capable, "all"), kFloat8), "") << capable;
  EXPECT_EQ(problems_on(cpu(), kFloat8), "") << "the CPU has its own way";
  const std::string said = problems_on(gpu("NVIDIA A100", 80), kFloat8);
  EXPECT_TRUE(
      said.starts_with("job.toml:2:14: model.converters asks for float8, which NVIDIA A100 (compute capability "
                       "8.0) does not multiply: it takes 8.9 or newer; set "
                       "quantize.linear.float8.emulate = true"))
      << said;
  EXPECT_EQ(problems_on(gpu("NVIDIA A100", 80), std::string(kFloat8) + "[quantize.linear.float8]\nemulate = true\n"),
            "");
}

TEST(DeviceProblems, AttentionKernelsThatARunCannotUseAreRefusedWithTheReason) {
  const std::string flash = "[debug]\nattention_kernel = \"flash\"\n";
  EXPECT_EQ(
      problems_on(cpu(), flash),
      "job.toml:2:20: debug.attention_kernel = \"flash\" cannot be used: a CPU has one attention kernel, which is "
      "not among them; leave it at \"auto\"\n");
  EXPECT_EQ(problems_on(kH100, flash), "");
  DeviceFacts reader = cpu();
  reader.trains = false;
  EXPECT_EQ(problems_on(reader, flash), "") << "a checkpoint that was trained on a GPU can be read on a CPU";
  const std::string in_fp32 = problems_on(kH100, flash + "[training]\nmixed_precision_param = \"float32\"\n");
  EXPECT_NE(in_fp32.find("fp32 attention has the efficient kernel only"), std::string::npos) << in_fp32;
}

TEST(DeviceProblems, EachAttentionKernelHasItsObstacles) {
  EXPECT_EQ(attention_obstacle("cudnn", {}), "");
  EXPECT_NE(attention_obstacle("efficient", {.on_cpu = true}).find("a CPU"), std::string::npos);
  EXPECT_EQ(attention_obstacle("efficient", {.in_bf16 = false}), "");
  EXPECT_NE(attention_obstacle("cudnn", {.documents = true}).find("document lengths vary"), std::string::npos);
  EXPECT_NE(attention_obstacle("cudnn", {.deterministic = true}).find("gradients vary"), std::string::npos);
  EXPECT_EQ(attention_obstacle("flash", {.documents = true, .deterministic = true}), "");
}

TEST(DeviceProblems, HostWaitsThatAGpusStepsHaveByDesignContradictTheirCheck) {
  const std::string offload = "[debug]\nsync_check = true\n[training]\nenable_cpu_offload = true\n";
  const std::string early = "[optimizer]\nearly_step_in_backward = true\n";
  const std::string float8 = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n";
  EXPECT_EQ(problems_on(kH100, offload + early),
            "job.toml:2:14: debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true "
            "and optimizer.early_step_in_backward = true together also wait for each block's gradients, which its "
            "optimizer steps at once; disable one of the three\n");
  EXPECT_EQ(problems_on(kH100, offload + kFloat8 + float8),
            "job.toml:2:14: debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true "
            "and quantize.linear.float8.enable_fsdp_float8_all_gather = true together also wait for the scales of each "
            "block's weights, which it casts itself; disable one of the three\n");
  EXPECT_EQ(problems_on(kH100, offload), "");
  EXPECT_EQ(problems_on(kH100, offload + float8), "") << "float8 that no converter asks for";
  EXPECT_EQ(problems_on(kH100, "[training]\nenable_cpu_offload = true\n" + early), "");
  EXPECT_EQ(problems_on(cpu(), offload + early), "");
}

TEST(DeviceProblems, ReplaysOnAGpuNeedOperationsThatRepeatTheirBits) {
  const std::string replay = "[debug]\nreplay_steps = 50\n";
  EXPECT_EQ(problems_on(kH100, replay),
            "job.toml:2:16: debug.replay_steps = 50 compares bits, which some operations on a GPU do not repeat; set "
            "debug.deterministic = true, or debug.replay_steps = 0\n");
  EXPECT_EQ(problems_on(kH100, replay + "deterministic = true\n"), "");
  EXPECT_EQ(problems_on(cpu(), replay), "");
}

TEST(DeviceProblems, AsynchronousTensorParallelismStaysWithinAHost) {
  const std::string async = "[parallelism]\nenable_async_tensor_parallel = true\ntensor_parallel_degree = 4\n";
  DeviceFacts facts = kH100;
  for (const int64_t ranks : {4, 8, 12}) {
    facts.host_ranks = ranks;
    EXPECT_EQ(problems_on(facts, async), "") << ranks;
  }
  facts.host_ranks = 6;
  EXPECT_EQ(
      problems_on(facts, async),
      "job.toml:2:32: parallelism.enable_async_tensor_parallel = true needs all tensor-parallel ranks on one host: "
      "hosts of 6 ranks do not hold multiples of parallelism.tensor_parallel_degree = 4; set it to false, or "
      "choose parallelism.tensor_parallel_degree within a host\n");
  EXPECT_EQ(problems_on(facts, "[parallelism]\ntensor_parallel_degree = 4\nenable_async_tensor_parallel = false\n"),
            "");
}

TEST(BuiltKernels, RunOnTheGpusOfTheirArchitectures) {
  for (const int capability : {80, 86, 89, 90}) EXPECT_TRUE(runs_on("80-real,90a-real", capability)) << capability;
  for (const int capability : {75, 100, 103, 120}) EXPECT_FALSE(runs_on("80-real,90a-real", capability)) << capability;
  EXPECT_FALSE(runs_on("90a-real", 91)) << "that very one";
  EXPECT_FALSE(runs_on("86-real", 80)) << "a newer minor version";
  EXPECT_TRUE(runs_on("all-major", 120)) << "a name, not a number";
  EXPECT_TRUE(runs_on("80", 120)) << "PTX is translated";
  EXPECT_FALSE(runs_on("90a", 100)) << "but not that of one architecture alone";
}

}  // namespace
}  // namespace titan
