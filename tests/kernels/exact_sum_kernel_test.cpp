#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>

#include "cases.h"
#include "support/exact_reference.h"

namespace titan {
namespace {

using Slots = std::array<int64_t, kExactSlots>;

/// How a launch gets its values.
struct Given {
  size_t skipped = 0;  // values before the first that is summed
  int64_t most_blocks = ExactSquares{}.most_blocks;
  KernelType type = KernelType::fp32;
};

/// The normalised sum; what its kernel moved goes to `findings`.
Slots squares_of(KernelMachine& machine, const std::vector<float>& values, Findings& findings, const Given& given) {
  Numbers in(machine, given.type, std::vector<double>(values.begin(), values.end()));
  MachineArray<int64_t> slots(machine, std::vector<int64_t>(kExactSlots, 0));
  const ExactSquares a{
      static_cast<const unsigned char*>(in.data()) + given.skipped * static_cast<size_t>(bytes_of(given.type)),
      static_cast<int64_t>(values.size() - given.skipped), slots.data(), given.most_blocks, given.type};
  machine.launch(&Kernels::exact_squares, a);
  findings.compare_traffic(machine, traffic(a));
  machine.run([&] { machine.kernels().exact_carry(slots.data(), nullptr); });
  Slots result;
  for (int i = 0; i < kExactSlots; ++i) result[static_cast<size_t>(i)] = slots[static_cast<size_t>(i)];
  return result;
}

std::string run_sum(KernelMachine& machine, const std::vector<float>& values, const Given& given = {}) {
  Findings findings;
  const Slots slots = squares_of(machine, values, findings, given);
  BigSum expected;
  for (float number : std::span(values).subspan(given.skipped)) {
    expected.add_square(static_cast<float>(rounded_to(given.type, number)));
  }
  for (size_t i = 0; i < kExactLimbs; ++i) {
    if (slots[i] != expected.word(i)) findings.say("limb " + std::to_string(i) + " is another");
  }
  MachineArray<int64_t> in(machine, std::vector<int64_t>(slots.begin(), slots.end()));
  MachineArray<double> value(machine, 1);
  machine.run([&] { machine.kernels().exact_value(in.data(), value.data(), nullptr); });
  if (value[0] != expected.rounded()) findings.say("the sum is another");
  return findings.text();
}

std::string run_not_finite(KernelMachine& machine, KernelType type) {
  std::vector<float> values = wide_numbers(1000, 6, -149, 126);
  Findings findings;
  const Slots finite = squares_of(machine, values, findings, {.type = type});
  values.insert(values.begin() + 500, {INFINITY, NAN, -INFINITY, -NAN, INFINITY});
  const Slots slots = squares_of(machine, values, findings, {.type = type});
  if (slots[kExactInfinities] != 3 || slots[kExactNans] != 2) findings.say("what is not finite is not counted");
  if (!std::equal(finite.begin(), finite.begin() + kExactLimbs, slots.begin())) findings.say("the sum is another");
  return findings.text();
}

/// Number i of `count`, for one block: each of its warps takes many tiles and keeps its sums from one to the next.
using Series = float (*)(size_t i, double normal);
std::vector<float> series(size_t count, Series number) {
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = number(i, normal(random));
  return values;
}

constexpr size_t kBlockTile = 8 * 512;  // numbers that a block of eight warps takes at once
constexpr struct {
  const char* name;
  Series number;
} kSeries[] = {
    {"normal", [](size_t, double x) { return static_cast<float>(x); }},
    {"small_bf16", [](size_t, double x) { return static_cast<float>(rounded_to(KernelType::bf16, 1e-9 * x)); }},
    {"growing", [](size_t i, double x) { return static_cast<float>(std::ldexp(x, static_cast<int>(i / kBlockTile))); }},
    {"shrinking",
     [](size_t i, double x) { return static_cast<float>(std::ldexp(x, -static_cast<int>(i / kBlockTile))); }},
    {"steps", [](size_t i, double x) { return static_cast<float>(std::ldexp(x, i / kBlockTile % 2 == 0 ? 90 : -60)); }},
    {"outliers", [](size_t i, double x) { return static_cast<float>(i % 997 == 5 ? 1e12 * x : x); }},
    {"zeros_first", [](size_t i, double x) { return i < 3 * kBlockTile ? 0.f : static_cast<float>(x); }},
    {"just_below_two", [](size_t, double) { return 0x1.fffffep0f; }},
    {"largest", [](size_t i, double) { return i % 2 == 0 ? 0x1.fffffep127f : -0x1.fffffep127f; }},
    {"largest_of_bf16", [](size_t i, double) { return i % 2 == 0 ? 0x1.fep127f : -0x1.fep127f; }},
    {"smallest", [](size_t, double) { return 0x1p-149f; }},
};

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  for (const KernelType type : {KernelType::fp32, KernelType::bf16}) {
    const std::string prefix = type == KernelType::bf16 ? "exact_squares_bf16_" : "exact_squares_";
    result.push_back({prefix + "not_finite", [type](KernelMachine& machine) { return run_not_finite(machine, type); }});
    for (const auto& one : kSeries) {
      if (type == KernelType::bf16 && one.name == std::string("largest")) continue;  // rounds to infinity
      result.push_back({prefix + one.name, [one, type](KernelMachine& machine) {
                          return run_sum(machine, series(70 * kBlockTile + 321, one.number),
                                         {.most_blocks = 1, .type = type});
                        }});
    }
    result.push_back({prefix + "unaligned", [type](KernelMachine& machine) {
                        return run_sum(machine, series(20011, kSeries[0].number), {.skipped = 3, .type = type});
                      }});
    for (size_t count : {1, 31, 32, 33, 255, 256, 257, 2047, 4099, 70001})
      result.push_back({prefix + std::to_string(count), [count, type](KernelMachine& machine) {
                          // bf16 rounds the largest numbers of fp32 to infinity
                          const int highest = type == KernelType::bf16 ? 126 : 127;
                          return run_sum(machine, wide_numbers(count, count, -149, highest), {.type = type});
                        }});
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
