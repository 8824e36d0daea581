#include <algorithm>
#include <array>
#include <cmath>

#include "cases.h"
#include "support/exact_reference.h"

namespace titan {
namespace {

using Slots = std::array<int64_t, kExactSlots>;

/// The normalised sum; what its kernel moved goes to `findings`.
Slots squares_of(KernelMachine& machine, const std::vector<float>& values, Findings& findings) {
  MachineArray<float> in(machine, values);
  MachineArray<int64_t> slots(machine, std::vector<int64_t>(kExactSlots, 0));
  const ExactSquares a{in.data(), static_cast<int64_t>(values.size()), slots.data()};
  machine.launch(&Kernels::exact_squares, a);
  findings.compare_traffic(machine, traffic(a));
  machine.run([&] { machine.kernels().exact_carry(slots.data(), nullptr); });
  Slots result;
  for (int i = 0; i < kExactSlots; ++i) result[static_cast<size_t>(i)] = slots[static_cast<size_t>(i)];
  return result;
}

std::string run_sum(KernelMachine& machine, size_t count) {
  const std::vector<float> values = wide_numbers(count, count);
  Findings findings;
  const Slots slots = squares_of(machine, values, findings);
  MachineArray<int64_t> in(machine, std::vector<int64_t>(slots.begin(), slots.end()));
  MachineArray<double> value(machine, 1);
  machine.run([&] { machine.kernels().exact_value(in.data(), value.data(), nullptr); });
  if (value[0] != exact_reference(values)) findings.say("the sum is another");
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

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"exact_squares_not_finite", run_not_finite}};
  for (size_t count : {1, 31, 32, 33, 255, 256, 257, 2047, 4099, 70001})
    result.push_back({"exact_squares_" + std::to_string(count),
                      [count](KernelMachine& machine) { return run_sum(machine, count); }});
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
