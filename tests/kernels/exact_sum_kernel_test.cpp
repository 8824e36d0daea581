#include <array>

#include "cases.h"
#include "support/exact_reference.h"

namespace titan {
namespace {

using Slots = std::array<int64_t, kExactSlots>;

Slots squares_of(const std::vector<float>& values) {
  const cuda_on_host::Buffer<float> in(values);
  cuda_on_host::Buffer<int64_t> slots(std::vector<int64_t>(kExactSlots, 0));
  host_kernels().exact_squares({in.data(), static_cast<int64_t>(values.size()), slots.data()}, nullptr);
  host_kernels().exact_carry(slots.data(), nullptr);
  Slots result;
  for (int i = 0; i < kExactSlots; ++i) result[static_cast<size_t>(i)] = slots[static_cast<size_t>(i)];
  return result;
}

std::string run_sum(size_t count) {
  const std::vector<float> values = wide_numbers(count, count);
  Findings findings;
  cuda_on_host::reset_counted();
  const Slots slots = squares_of(values);
  findings.compare_traffic(traffic(ExactSquares{nullptr, static_cast<int64_t>(count), nullptr}));
  cuda_on_host::Buffer<int64_t> in(std::vector<int64_t>(slots.begin(), slots.end()));
  cuda_on_host::Buffer<double> value(1);
  host_kernels().exact_value(in.data(), value.data(), nullptr);
  if (value[0] != exact_reference(values)) findings.say("the sum is another");
  return findings.text();
}

std::string run_not_finite() {
  std::vector<float> values = wide_numbers(1000, 6);
  const Slots finite = squares_of(values);
  values.insert(values.begin() + 500, {INFINITY, NAN, -INFINITY, -NAN, INFINITY});
  const Slots slots = squares_of(values);
  Findings findings;
  if (slots[kExactInfinities] != 3 || slots[kExactNans] != 2) findings.say("what is not finite is not counted");
  if (!std::equal(finite.begin(), finite.begin() + kExactLimbs, slots.begin())) findings.say("the sum is another");
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"exact_squares_not_finite", run_not_finite}};
  for (size_t count : {1, 31, 32, 33, 255, 256, 257, 2047, 4099, 70001})
    result.push_back({"exact_squares_" + std::to_string(count), [count] { return run_sum(count); }});
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
