#include "titan/train/device.h"
#include "titan/gpu/cuda.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/train/compile.h"

namespace titan {
namespace {

TEST(ChooseDevice, TheCpuIsTakenWhenAskedForAndSaysWhatItIs) {
  const DeviceInfo device = choose_device("cpu");
  EXPECT_TRUE(device.device.is_cpu());
  EXPECT_FALSE(device.name.empty());
  EXPECT_GT(device.memory_bytes, 0);
}

TEST(ChooseDevice, ACudaDeviceThatIsNotThereWasReportedBefore) {
  if (has_gpu()) GTEST_SKIP() << "there is a CUDA device here";
  try {
    choose_device("cuda");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bug);
    EXPECT_NE(std::string(error.what()).find("wanted = cuda"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(choose_device("auto").device.is_cpu());
}

TEST(MemoryRoom, OfAGpuIsSharedOnlyByRanksThatWereToldToShareItAndOfTheHostByAllOfItsRanks) {
  DeviceInfo gpu;
  gpu.device = at::Device(at::kCUDA, 0);
  gpu.memory_bytes = int64_t{80} << 30;
  const int64_t libraries = gpu.memory_bytes - *memory_room(gpu, /*host_ranks=*/1, /*share_gpu=*/false).bytes;
  EXPECT_EQ(memory_room(gpu, 4, /*share_gpu=*/false).bytes, gpu.memory_bytes - libraries);
  EXPECT_EQ(memory_room(gpu, 4, /*share_gpu=*/true).bytes, gpu.memory_bytes / 4 - libraries);
  EXPECT_EQ(memory_room(gpu, 80, /*share_gpu=*/true).bytes, 0) << "there is less than the libraries take";
  for (const bool share_gpu : {false, true}) {
    const int64_t alone = *memory_room(choose_device("cpu"), 1, share_gpu).bytes;
    EXPECT_LT(*memory_room(choose_device("cpu"), 4, share_gpu).bytes, alone / 2);
  }
}

TEST(MemoryRoom, SaysHowMuchThereIsAndWhatBecomesOfIt) {
  DeviceInfo gpu{.device = at::Device(at::kCUDA, 0), .name = "a card", .memory_bytes = int64_t{80} << 30};
  EXPECT_EQ(memory_room(gpu, 4, false).words,
            "a card has 80.00 GiB, 2.00 GiB reserved for libraries: 78.00 GiB left for this rank");
  EXPECT_EQ(memory_room(gpu, 4, true).words,
            "a card has 80.00 GiB, for each of 4 ranks 20.00 GiB, 2.00 GiB reserved for libraries: 18.00 GiB "
            "left for this rank");
  for (const int64_t small : {int64_t{1} << 30, int64_t{2} << 30}) {
    gpu.memory_bytes = small;
    EXPECT_NE(memory_room(gpu, 1, false).words.find(" reserved for libraries: nothing left for this rank"),
              std::string::npos);
  }
}

TEST(GpuObstacle, IsSaidWhereADriverIsAndNowhereElse) {
  constexpr int kOldDriver = 35, kNoDevice = 100, kMismatch = 803;
  EXPECT_EQ(gpu_obstacle({}), "");
  EXPECT_EQ(gpu_obstacle({kNoDevice, "no CUDA-capable device is detected", 13000, 13000}), "") << "or they are hidden";
  EXPECT_EQ(gpu_obstacle({kOldDriver, "insufficient", 0, 13000}), "")
      << "a machine without a driver is one for the CPU";
  EXPECT_EQ(gpu_obstacle({kOldDriver, "insufficient", 12040, 13000}),
            "the NVIDIA driver of this machine is too old: it knows CUDA 12.4, and this program needs 13.0; update the "
            "driver");
  EXPECT_EQ(gpu_obstacle({kMismatch, "system has unsupported display driver / cuda driver combination", 13000, 13000}),
            "the GPUs of this machine cannot be used: CUDA says \"system has unsupported display driver / cuda driver "
            "combination\" (error 803); see what nvidia-smi says");
}

TEST(DeviceFactsOfAMachine, AreKnownForACpuWithoutAskingForGpus) {
  EXPECT_TRUE(device_facts("cpu", 0).is(DeviceFacts::Kind::cpu));
  EXPECT_TRUE(device_facts(choose_device("cpu")).is(DeviceFacts::Kind::cpu));
}

TEST(DeviceFactsOfAMachine, AgreeWithTheDeviceThatIsChosen) {
  if (has_gpu()) GTEST_SKIP() << "there is a CUDA device here";
  EXPECT_TRUE(device_facts("auto", 0).is(DeviceFacts::Kind::cpu));
  EXPECT_TRUE(device_facts("cuda", 0).is(DeviceFacts::Kind::cpu)) << "device_problems refuses it";
}

StepOutcome outcome(const at::Tensor& loss, double norm, float skip, double save = 0) {
  return {loss,
          {at::scalar_tensor(norm, at::kDouble), at::ones({}), at::scalar_tensor(skip)},
          at::tensor({0.0, save}, at::kDouble),
          loss / 4,
          /*spike=*/{}};
}

TEST(StepReadback, BringsTheNumbersOfTheStepWithoutRounding) {
  StepReadback readback(outcome(at::scalar_tensor(1.0 + 1e-15, at::kDouble), 1e300, 0, 1));
  const StepValues values = readback.wait();
  EXPECT_EQ(values.loss, 1.0 + 1e-15);
  EXPECT_EQ(values.grad_norm, 1e300);
  EXPECT_FALSE(values.skipped);
  EXPECT_EQ(values.requests, (Requests{.stop = false, .save = true}));
  EXPECT_EQ(values.own_loss, (1.0 + 1e-15) / 4);
}

TEST(StepReadback, ASkippedStepKeepsItsNumbersThatAreNone) {
  StepReadback readback(
      outcome(at::scalar_tensor(std::nan(""), at::kDouble), std::numeric_limits<double>::infinity(), 1));
  const StepValues values = readback.wait();
  EXPECT_TRUE(std::isnan(values.loss));
  EXPECT_TRUE(std::isinf(values.grad_norm));
  EXPECT_TRUE(values.skipped);
}

TEST(StepReadback, TellsASpikeWhereAGuardHasFoundOne) {
  StepOutcome step = outcome(at::scalar_tensor(2.0, at::kDouble), 1, 0);
  EXPECT_FALSE(StepReadback(step).wait().spike.has_value()) << "there is no guard";
  step.spike = at::tensor({0.0, 1.5, -0.5}, at::kDouble);
  EXPECT_FALSE(StepReadback(step).wait().spike.has_value());
  step.spike = at::tensor({1.0, 7.5, -0.5}, at::kDouble);
  const std::optional<Spike> spike = StepReadback(step).wait().spike;
  ASSERT_TRUE(spike.has_value());
  EXPECT_EQ(spike->loss_deviations, 7.5);
  EXPECT_EQ(spike->norm_deviations, -0.5);
}

TEST(StepReadback, BringsStatisticsWithAndWithoutAGuard) {
  StepOutcome step = outcome(at::scalar_tensor(2.0, at::kDouble), 1, 0);
  step.statistics = at::tensor({0.25, 0.5, 4.0, 8.0}, at::kDouble);
  EXPECT_EQ(StepReadback(step).wait().statistics, (std::vector{0.25, 0.5, 4.0, 8.0}));
  EXPECT_FALSE(StepReadback(step).wait().spike.has_value());
  step.spike = at::tensor({1.0, 7.5, -0.5}, at::kDouble);
  const StepValues values = StepReadback(step).wait();
  EXPECT_EQ(values.statistics, (std::vector{0.25, 0.5, 4.0, 8.0}));
  ASSERT_TRUE(values.spike.has_value());
  EXPECT_EQ(values.spike->loss_deviations, 7.5);
}

TEST(StepReadback, WhatHappensToTheTensorsAfterwardsDoesNotMatter) {
  at::Tensor loss = at::scalar_tensor(2.0, at::kDouble);
  StepReadback readback(outcome(loss, 1, 0));
  loss.fill_(7);
  EXPECT_EQ(readback.wait().loss, 2.0);
}

TEST(PeakMemory, OfTheCpuIsWhatTheProcessHeldAtMostEvenAfterItWasFreed) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t before = resident_bytes();
  at::ones({kBytes / 4}, at::kFloat);
  EXPECT_GE(peak_memory_bytes(at::kCPU), before + kBytes * 9 / 10);
}

}  // namespace
}  // namespace titan
