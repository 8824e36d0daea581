#include <bit>
#include <cmath>
#include <iterator>
#include <optional>

#include "cases.h"

namespace titan {
namespace {

constexpr RoundingKey kKey{0x0123456789ABCDEF, 77};
constexpr AdamConstants kConstants{0.9f, 0.95f, 1e-8f, 2e-3f, 1.3f, 0.999f, 0.f};

/// fp32 as it is, bf16 rounded with these 16 random bits.
double kept(KernelType type, float value, uint32_t random) {
  if (type == KernelType::fp32) return value;
  return std::bit_cast<float>(round_stochastically(std::bit_cast<uint32_t>(value), random) << 16);
}

struct Case {
  size_t count;
  size_t offset = 0;
  KernelType weight_type = KernelType::bf16;
  KernelType moment_type = KernelType::bf16;
  RoundingPlace place{};
  bool skip = false;
  bool strange = false;                 // zeros, infinities, NaNs, tiny and huge numbers among the others
  std::optional<size_t> copy_offset{};  // of a copy in bf16; none: there is none
  bool corrects = false;                // factors of step size and root scale are on the device
  bool tiny = false;                    // weights and gradients of 0, so that subnormal quotients are what is kept
  KernelType gradient_type = KernelType::fp32;
  bool finds = false;  // the amax
};

constexpr uint32_t kAmaxBefore = 0x3fc00000;  // that a skipped step leaves

/// Some of `values` become what no fast way around holds for; `every` differs for numbers that are to meet
/// stochastically.
void make_strange(std::vector<double>& values, size_t every) {
  const double all_ones = std::bit_cast<double>(0x7FFFFFFFE0000000);  // the NaN that a GPU makes: all bits of an fp32
  const double strange[] = {0.0,       -0.0,    INFINITY, -INFINITY, NAN,     all_ones, 0x1p-130,
                            -0x1p-140, 0x1p-70, 0x1p-52,  0x1p-42,   0x1p+90, 0x1p+126};
  for (size_t i = every, kind = 0; i < values.size(); i += every, ++kind)
    values[i] = strange[kind % std::size(strange)];
}

std::string run_step(KernelMachine& machine, const Case& c) {
  auto w = numbers(c.count, 1, c.weight_type), g = numbers(c.count, 2, c.gradient_type);
  auto m = numbers(c.count, 3, c.moment_type, 0.1), v = numbers(c.count, 4, c.moment_type, 0.1);
  if (c.strange) make_strange(w, 7), make_strange(g, 3), make_strange(m, 2), make_strange(v, 5);
  if (c.tiny) {
    w = g = std::vector<double>(c.count, 0);
    m = numbers(c.count, 3, c.moment_type, 0x1p-119);
  }
  for (double& value : g) value = rounded_to(c.gradient_type, value);
  for (double& value : v) value = std::fabs(value);
  Numbers weight(machine, c.weight_type, w, c.offset), gradient(machine, c.gradient_type, g, c.offset);
  Numbers first(machine, c.moment_type, m, c.offset), second(machine, c.moment_type, v, c.offset);
  const std::vector<double> before = numbers(c.count, 6, KernelType::bf16);
  Numbers copy(machine, KernelType::bf16, before, c.copy_offset.value_or(0));
  Numbers clip(machine, KernelType::fp32, std::vector<double>{0.5});
  Numbers skip(machine, KernelType::fp32, std::vector<double>{c.skip ? 1.0 : 0.0});
  Bf16AdamStep a;
  a.weight = weight.data();
  a.gradient = gradient.data();
  a.first = first.data();
  a.second = second.data();
  a.count = static_cast<int64_t>(c.count);
  a.weight_type = c.weight_type;
  a.moment_type = c.moment_type;
  a.gradient_type = c.gradient_type;
  a.key = kKey;
  a.place = c.place;
  a.constants = kConstants;
  a.clip = static_cast<const float*>(clip.data());
  a.skip = static_cast<const float*>(skip.data());
  if (c.copy_offset) a.copy = copy.data();
  Numbers corrections(machine, KernelType::fp32, std::vector<double>{1.5, 0.75});
  AdamConstants k = kConstants;
  if (c.corrects) {
    a.corrections = static_cast<const float*>(corrections.data());
    k.step_size *= 1.5f, k.root_scale *= 0.75f;
  }
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{c.skip ? kAmaxBefore : 0});
  if (c.finds) a.largest = largest.data();
  Findings findings;
  machine.launch(&Kernels::bf16_adam, a);
  if (!c.skip && !c.strange && !c.tiny) findings.compare_traffic(machine, traffic(a));
  std::vector<double> new_w = w, new_m = m, new_v = v;
  for (size_t i = 0; i < c.count && !c.skip; ++i) {
    const float scaled = static_cast<float>(g[i]) * 0.5f + k.coupled * static_cast<float>(w[i]);
    const float fresh_m = k.beta1 * static_cast<float>(m[i]) + (1 - k.beta1) * scaled;
    const float fresh_v = k.beta2 * static_cast<float>(v[i]) + (1 - k.beta2) * scaled * scaled;
    const float fresh_w =
        static_cast<float>(w[i]) * k.decay - k.step_size * fresh_m / (std::sqrt(fresh_v) * k.root_scale + k.epsilon);
    const RoundingBits random_bits = rounding_bits(kKey, c.place.index(static_cast<int64_t>(i)));
    new_m[i] = kept(c.moment_type, fresh_m, random_bits.of(KeptNumber::first_moment));
    new_v[i] = kept(c.moment_type, fresh_v, random_bits.of(KeptNumber::second_moment));
    new_w[i] = kept(c.weight_type, fresh_w, random_bits.of(KeptNumber::weight));
  }
  findings.compare("weight", weight, new_w, 0);
  findings.compare("first", first, new_m, 0);
  findings.compare("second", second, new_v, 0);
  std::vector<double> new_copy = before;
  for (size_t i = 0; i < c.count && c.copy_offset && !c.skip; ++i)
    new_copy[i] = rounded_to(KernelType::bf16, weight[i]);
  findings.compare("copy", copy, new_copy, 0);
  const uint32_t raised = largest[0];
  if (!largest.guards_intact()) findings.say("something was written beside the amax");
  if (c.skip || !c.finds) {
    if (raised != (c.skip ? kAmaxBefore : 0)) findings.say("the amax was written");
  } else {
    findings.compare_amax(machine, c.copy_offset ? KernelType::bf16 : c.weight_type, c.copy_offset ? copy : weight,
                          raised);
  }
  return findings.text();
}

std::string run_round(KernelMachine& machine, size_t count, KeptNumber number, const RoundingPlace& place) {
  const auto values = numbers(count, 5, KernelType::fp32);
  Numbers from(machine, KernelType::fp32, values), to(machine, KernelType::bf16, count);
  Numbers skip(machine, KernelType::fp32, std::vector<double>{0.0});
  const RoundStochastically a{
      static_cast<const float*>(from.data()), to.data(), static_cast<int64_t>(count), number, kKey, place,
      static_cast<const float*>(skip.data())};
  Findings findings;
  machine.launch(&Kernels::round_stochastically, a);
  findings.compare_traffic(machine, traffic(a));
  std::vector<double> expected(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t random = rounding_bits(kKey, place.index(static_cast<int64_t>(i))).of(number);
    expected[i] = kept(KernelType::bf16, static_cast<float>(values[i]), random);
  }
  findings.compare("rounded", to, expected, 0);
  return findings.text();
}

std::vector<KernelCase> cases() {
  const KernelType fp32 = KernelType::fp32, bf16 = KernelType::bf16;
  std::vector<KernelCase> result;
  const auto add_steps = [&](const std::string& what, Case c) {
    for (const bool finds : {false, true}) {
      c.finds = finds;
      result.push_back(
          {"bf16_adam_" + what + (finds ? "_amax" : ""), [c](KernelMachine& machine) { return run_step(machine, c); }});
    }
  };
  for (const auto& [weight, moments] : {std::pair(bf16, bf16), std::pair(bf16, fp32), std::pair(fp32, bf16)}) {
    const std::string types = std::string(name(weight)) + "_" + name(moments) + "_";
    for (size_t count : {1, 2, 255, 514, 1031}) {
      const auto all = static_cast<int64_t>(count);
      const auto add = [&, weight = weight, moments = moments](const char* where, size_t offset, RoundingPlace place) {
        add_steps(types + std::to_string(count) + where, {count, offset, weight, moments, place});
      };
      for (size_t copy_offset = 0; weight == fp32 && copy_offset < 4; ++copy_offset) {
        const std::string copied = "_copy_" + std::to_string(copy_offset);
        for (const RoundingPlace place : {RoundingPlace{0, all, 1}, RoundingPlace{10, 5, 9}}) {
          const Case c{.count = count,
                       .weight_type = weight,
                       .moment_type = moments,
                       .place = place,
                       .copy_offset = copy_offset};
          add_steps(types + std::to_string(count) + copied + (place.first ? "_odd_runs" : ""), c);
        }
      }
      add("", 0, {0, all, 1});
      add("_odd_beginning", 0, {7, all, 1});
      add("_unaligned", 1, {0, all, 1});
      add("_aligned_to_pairs", 2, {0, all, 1});
      add("_runs_of_twelve", 0, {8, 12, 22});
      add("_even_runs", 0, {10, 6, 20});
      add("_odd_runs", 0, {10, 5, 9});
      add("_odd_stride", 0, {10, 12, 21});
    }
    for (size_t count : {1, 255, 1031}) {
      for (size_t offset : {0, 1, 2}) {
        for (const RoundingPlace place : {RoundingPlace{0, static_cast<int64_t>(count), 1}, RoundingPlace{10, 5, 9}}) {
          const Case c{.count = count,
                       .offset = offset,
                       .weight_type = weight,
                       .moment_type = moments,
                       .place = place,
                       .gradient_type = bf16};
          add_steps(types + "bf16_gradient_" + std::to_string(count) + "_behind_" + std::to_string(offset) +
                        (place.first ? "_odd_runs" : ""),
                    c);
        }
      }
    }
    Case unusual{.count = 2048, .weight_type = weight, .moment_type = moments, .place = {0, 2048, 1}};
    unusual.strange = true;
    if (weight == fp32) unusual.copy_offset = 0;
    add_steps(types + "strange", unusual);
    unusual.gradient_type = bf16;
    add_steps(types + "bf16_gradient_strange", unusual);
    unusual.gradient_type = fp32;
    unusual.strange = false;
    unusual.tiny = true;
    add_steps(types + "tiny", unusual);
  }
  add_steps("skipped_257", {257, 0, bf16, bf16, {0, 257, 1}, true});
  for (const KeptNumber number : {KeptNumber::weight, KeptNumber::first_moment, KeptNumber::second_moment}) {
    const std::string which = "round_stochastically_" + std::to_string(static_cast<int>(number));
    const auto add = [&](const char* where, RoundingPlace place) {
      result.push_back({which + where, [=](KernelMachine& machine) { return run_round(machine, 301, number, place); }});
    };
    add("", {0, 301, 1});
    add("_odd_runs", {3, 7, 11});
    add("_runs_of_eight", {6, 8, 10});
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
