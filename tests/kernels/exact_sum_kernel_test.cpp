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

/// The normalised sum; what its kernel moved goes to `findings`.
Slots squares_of(KernelMachine& machine, const std::vector<float>& values, Findings& findings, size_t skipped = 0,
                 int64_t most_blocks = ExactSquares{}.most_blocks) {
  MachineArray<float> in(machine, values);
  MachineArray<int64_t> slots(machine, std::vector<int64_t>(kExactSlots, 0));
  const ExactSquares a{in.data() + skipped, static_cast<int64_t>(values.size() - skipped), slots.data(), most_blocks};
  machine.launch(&Kernels::exact_squares, a);
  findings.compare_traffic(machine, traffic(a));
  machine.run([&] { machine.kernels().exact_carry(slots.data(), nullptr); });
  Slots result;
  for (int i = 0; i < kExactSlots; ++i) result[static_cast<size_t>(i)] = slots[static_cast<size_t>(i)];
  return result;
}

std::string run_sum(KernelMachine& machine, const std::vector<float>& values, size_t skipped = 0,
                    int64_t most_blocks = ExactSquares{}.most_blocks) {
  Findings findings;
  const Slots slots = squares_of(machine, values, findings, skipped, most_blocks);
  BigSum expected;
  for (float number : std::span(values).subspan(skipped)) expected.add_square(number);
  for (size_t i = 0; i < kExactLimbs; ++i) {
    if (slots[i] != expected.word(i)) findings.say("limb " + std::to_string(i) + " is another");
  }
  MachineArray<int64_t> in(machine, std::vector<int64_t>(slots.begin(), slots.end()));
  MachineArray<double> value(machine, 1);
  machine.run([&] { machine.kernels().exact_value(in.data(), value.data(), nullptr); });
  if (value[0] != expected.rounded()) findings.say("the sum is another");
  return findings.text();
}

std::string run_not_finite(KernelMachine& machine) {
  std::vector<float> values = wide_numbers(1000, 6);
  Findings findings;
  const Slots finite = squares_of(machine, values, findings);
  values.insert(values.begin() + 500, {INFINITY, NAN, -INFINITY, -NAN, INFINITY});
  const Slots slots = squares_of(machine, values, findings);
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
    {"smallest", [](size_t, double) { return 0x1p-149f; }},
};

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"exact_squares_not_finite", run_not_finite}};
  for (const auto& one : kSeries) {
    result.push_back({std::string("exact_squares_") + one.name, [one](KernelMachine& machine) {
                        return run_sum(machine, series(70 * kBlockTile + 321, one.number), 0, /*most_blocks=*/1);
                      }});
  }
  result.push_back({"exact_squares_unaligned",
                    [](KernelMachine& machine) { return run_sum(machine, series(20011, kSeries[0].number), 3); }});
  for (size_t count : {1, 31, 32, 33, 255, 256, 257, 2047, 4099, 70001})
    result.push_back({"exact_squares_" + std::to_string(count),
                      [count](KernelMachine& machine) { return run_sum(machine, wide_numbers(count, count)); }});
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
