#include "titan/train/memory_report.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <optional>
#include <system_error>

#include "titan/base/error.h"

namespace titan {
namespace {

std::unique_ptr<Parameter> a_parameter(const std::string& name, std::vector<int64_t> shape, bool own_copy) {
  ParameterSpec spec{name, shape, {}};
  auto parameter = std::make_unique<Parameter>(spec);
  parameter->master = at::empty(shape, at::kFloat);
  parameter->compute_copy = own_copy ? at::empty(shape, at::kBFloat16) : parameter->master;
  return parameter;
}

TEST(MemoryRows, AddUpToThePeakAndStandBesideThePlan) {
  const auto a = a_parameter("a", {16, 4}, false), b = a_parameter("b", {10}, true);
  const std::vector<Parameter*> parameters{a.get(), b.get()};
  Plan plan;
  plan.memory = {{"parameters", 300},
                 {"gradients", 70},
                 {"optimizer state", 592},
                 {"activations kept", 800},
                 {"one block recomputed", 50}};
  const std::vector<MemoryRow> rows =
      memory_rows(plan.memory, parameters,
                  {.before_bytes = 1000, .gradient_bytes = 70, .optimizer_bytes = 600, .peak_bytes = 9999});
  std::map<std::string, MemoryRow> by_name;
  int64_t planned = 0, actual = 0;
  for (const MemoryRow& row : rows) {
    by_name[row.purpose] = row;
    planned += row.planned;
    actual += row.actual;
  }
  EXPECT_EQ(actual, 9999);
  EXPECT_EQ(planned, plan.predicted_bytes());
  EXPECT_EQ(by_name["parameters"].actual, (64 + 10) * 4);
  EXPECT_EQ(by_name["parameters"].planned, 300);
  EXPECT_EQ(by_name["parameters, compute copy"].actual, 10 * 2) << "found, though nobody planned it";
  EXPECT_EQ(by_name["process and libraries"].actual, 1000);
  EXPECT_EQ(by_name["optimizer state"].planned, 592);
  EXPECT_EQ(by_name["optimizer state"].actual, 600);
  EXPECT_EQ(by_name["gradients"].actual, 70);
  EXPECT_EQ(by_name["activations and the rest"].planned, 850) << "what cannot be measured apart is one sum";
}

TEST(MemoryRows, OnADeviceLeaveOutWhatLiesOnTheHost) {
  const auto a = a_parameter("a", {16, 4}, true);
  const std::vector<Parameter*> parameters{a.get()};
  Plan plan;
  plan.memory = {{"parameters", 256, /*on_host=*/true},
                 {"parameters, compute copy", 128, true},
                 {"gathered weights", 64},
                 {"gradients", 256, true},
                 {"optimizer state", 512, true},
                 {"activations kept", 800},
                 {"activations on the host", 900, true}};
  MeasuredMemory measured{.weight_slot_bytes = 64,
                          .gradient_bytes = 256,
                          .optimizer_bytes = 512,
                          .host_activation_bytes = 900,
                          .peak_bytes = 1000};
  const auto rows_with = [&](bool device_only) {
    measured.device_only = device_only;
    std::vector<std::string> lines;
    for (const MemoryRow& row : memory_rows(plan.memory, parameters, measured)) {
      lines.push_back(fmt::format("{}: {} {}", row.purpose, row.planned, row.actual));
    }
    return lines;
  };
  EXPECT_EQ(rows_with(true),
            (std::vector<std::string>{"gathered weights: 64 64", "activations and the rest: 800 936"}));
  measured.peak_bytes = 4000;
  EXPECT_EQ(rows_with(false).size(), 7u) << "on a CPU it is the same memory";
  EXPECT_EQ(rows_with(false).back(), "activations and the rest: 800 1884");
}

TEST(MemoryRows, OfGradientsThatPassAreOneOfTheRest) {
  Plan plan;
  plan.memory = {{"gradients", 70}, {"activations kept", 800}};
  const std::vector<MemoryRow> rows = memory_rows(plan.memory, {}, {.peak_bytes = 900});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].planned, 870);
  EXPECT_EQ(rows[0].actual, 900);
}

TEST(MemoryRows, AreShownWithTheirSums) {
  const std::vector<MemoryRow> rows{{"process and libraries", 0, 1 << 20},
                                    {"parameters", 3 << 20, 3 << 20},
                                    {"activations and the rest", 1 << 20, 2 << 20}};
  EXPECT_EQ(comparison_table(rows),
            (std::vector<std::string>{"                                  planned       actual",
                                      "  process and libraries                       1.00 MiB",
                                      "  parameters                     3.00 MiB     3.00 MiB",
                                      "  activations and the rest       1.00 MiB     2.00 MiB",
                                      "  together                       4.00 MiB     6.00 MiB"}));
}

template <class Throw>
std::optional<std::string> words_of(const Throw& fail) {
  try {
    fail();
  } catch (...) {
    return out_of_memory_words(std::current_exception());
  }
  return std::nullopt;
}

TEST(OutOfMemory, IsToldFromOtherFailuresWithTheAllocatorsWords) {
  EXPECT_EQ(words_of([] { throw std::bad_alloc(); }), "");
  const auto system = [](std::errc code) { throw std::system_error(std::make_error_code(code)); };
  EXPECT_EQ(words_of([&] { system(std::errc::resource_unavailable_try_again); }), std::nullopt) << "of std::thread";
  EXPECT_EQ(words_of([&] { system(std::errc::not_enough_memory); }), "");
  EXPECT_EQ(words_of([&] { system(std::errc::permission_denied); }), std::nullopt);
  EXPECT_EQ(words_of([] {
              TORCH_CHECK(false,
                          "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: "
                          "you tried to allocate 8 bytes. Error code 12");
            }),
            "you tried to allocate 8 bytes");
  EXPECT_EQ(words_of([] { TORCH_CHECK(false, "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has"); }),
            "Tried to allocate 2 GiB");
  EXPECT_EQ(words_of([] { TORCH_CHECK(false, "sizes differ"); }), std::nullopt);
  const auto plain = [](const char* message) { return words_of([&] { throw std::runtime_error(message); }); };
  EXPECT_EQ(plain("kernel adam: out of memory"), "") << "what a launch of ours throws";
  EXPECT_EQ(plain("DefaultCPUAllocator: can't allocate memory: you tried …"), "");
  EXPECT_EQ(plain("something else"), std::nullopt);
  EXPECT_EQ(words_of([] { throw Error(ExitCode::storage, "out of memory"); }), std::nullopt);
}

TEST(OutOfMemory, MayBeWhatALibrarySaysNothingPreciseAbout) {
  const auto words = [](const char* message) {
    return vague_words(std::make_exception_ptr(std::runtime_error(message)));
  };
  EXPECT_EQ(words("could not execute a primitive"), "could not execute a primitive");
  EXPECT_EQ(words("could not create a primitive"), "could not create a primitive");
  EXPECT_EQ(words("sizes differ"), std::nullopt);
}

TEST(MemoryRows, OfMemoryThatNothingWasWrittenToYetAreNotNegative) {
  Plan plan;
  plan.memory = {{"gradients", 70}, {"activations kept", 800}};
  const std::vector<MemoryRow> rows = memory_rows(plan.memory, {}, {.gradient_bytes = 70, .peak_bytes = 30});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].actual, 0);
}

}  // namespace
}  // namespace titan
