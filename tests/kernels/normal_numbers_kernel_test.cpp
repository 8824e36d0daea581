#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cases.h"
#include "support/random_sequence.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

std::string run_fill(KernelMachine& machine, KernelType type, size_t count, const NormalNumbers& of,
                     const RoundingPlace& place) {
  Numbers values(machine, type, count, /*offset=*/1);
  const NormalFill a{type, static_cast<int64_t>(count), of, place, values.data()};
  Findings findings;
  machine.launch(&Kernels::normal_fill, a);
  findings.compare_traffic(machine, traffic(a));
  std::vector<double> expected;
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal_number(of, place.index(static_cast<int64_t>(i))));
    expected.push_back(rounded_to(type, value));
  }
  findings.compare("value", values, expected, 0);
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  const NormalNumbers plain{42, 7, 0.02}, cut{42, 7, 1, true, -1, 1};
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (size_t count : {1, 255, 257, 1031}) {
      const auto all = static_cast<int64_t>(count);
      const std::string shape = std::string(name(type)) + "_" + std::to_string(count);
      result.push_back({"normal_fill_" + shape, [=](KernelMachine& machine) {
                          return run_fill(machine, type, count, plain, {0, all, 1});
                        }});
      result.push_back({"normal_fill_cut_" + shape, [=](KernelMachine& machine) {
                          return run_fill(machine, type, count, cut, {5, 7, 19});
                        }});
    }
  }
  // Beyond what 32 bits count.
  result.push_back({"normal_fill_far", [=](KernelMachine& machine) {
                      return run_fill(machine, KernelType::fp32, 300, plain, {(int64_t{1} << 33) + 1, 11, 128256});
                    }});
  return result;
}

const AddKernelCases added(cases());

/// Units in the last place of the larger that are between two numbers.
double ulps(double a, double b) {
  const double larger = std::max(std::fabs(a), std::fabs(b));
  return larger == 0 ? 0 : std::fabs(a - b) / (std::nextafter(larger, INFINITY) - larger);
}

TEST(NormalNumbers, AreMadeOfLogarithmsAndCosinesThatAreRightToTheLastBits) {
  double logarithms = 0, cosines = 0, sines = 0;
  PhiloxSequence random(3);
  std::vector<uint32_t> bits{0,          1,          2,          0x3FFFFFFF, 0x40000000,
                             0x7FFFFFFF, 0x80000000, 0xBFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF};
  while (bits.size() < 100'000) bits.push_back(random.next() >> (bits.size() % 29));
  for (const uint32_t one : bits) {
    const double u = unit_interval(one);
    ASSERT_EQ(exact::unit_interval(one), u);
    logarithms = std::max(logarithms, ulps(exact::logarithm(u), std::log(u)));
    const double angle = 2 * std::numbers::pi * u;
    const exact::CosineAndSine turned = exact::cosine_and_sine(angle);
    cosines = std::max(cosines, ulps(turned.cosine, std::cos(angle)));
    sines = std::max(sines, ulps(turned.sine, std::sin(angle)));
  }
  EXPECT_LE(logarithms, 2);
  EXPECT_LE(cosines, 2);
  EXPECT_LE(sines, 2);
}

}  // namespace
}  // namespace titan
