#include <cmath>
#include <optional>

#include "cases.h"

namespace titan {
namespace {

constexpr double kLr = 1e-3, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

struct Case {
  size_t count;
  size_t offset = 0;
  bool decoupled = true;
  double clip = 0.37;
  bool skip = false;
  std::optional<size_t> copy_offset{};  // of a copy in bf16; none: there is none
  bool corrects = false;                // the bias corrections are on the device
  KernelType gradient_type = KernelType::fp32;
  bool finds = false;  // the amax
};

constexpr uint32_t kAmaxBefore = 0x3fc00000;  // that a skipped step leaves

/// Step 3 of AdamW, or of Adam, from arbitrary moments.
std::string run_step(KernelMachine& machine, const Case& c) {
  const auto& [count, offset, decoupled, clip, skip, copy_offset, corrects, gradient_type, finds] = c;
  const KernelType fp32 = KernelType::fp32;
  const auto w = numbers(count, 1, fp32), g = numbers(count, 2, gradient_type), m = numbers(count, 3, fp32, 0.1);
  auto v = numbers(count, 4, fp32, 0.1);
  for (double& value : v) value = std::fabs(value);
  Numbers weight(machine, fp32, w, offset), gradient(machine, gradient_type, g, offset),
      first(machine, fp32, m, offset), second(machine, fp32, v, offset);
  Numbers clip_in(machine, fp32, std::vector<double>{clip}),
      skip_in(machine, fp32, std::vector<double>{skip ? 1.0 : 0.0});
  const std::vector<double> before = numbers(count, 5, KernelType::bf16);
  Numbers copy(machine, KernelType::bf16, before, copy_offset.value_or(0));
  const double correction1 = 1 - std::pow(kBeta1, 3), correction2 = 1 - std::pow(kBeta2, 3);
  Numbers corrections(machine, fp32, std::vector<double>{1 / correction1, 1 / std::sqrt(correction2)});
  AdamStep a;
  a.weight = static_cast<float*>(weight.data());
  a.gradient = gradient.data();
  a.gradient_type = gradient_type;
  a.first = static_cast<float*>(first.data());
  a.second = static_cast<float*>(second.data());
  a.count = static_cast<int64_t>(count);
  a.constants = {static_cast<float>(kBeta1),
                 static_cast<float>(kBeta2),
                 static_cast<float>(kEps),
                 static_cast<float>(corrects ? kLr : kLr / correction1),
                 static_cast<float>(corrects ? 1 : 1 / std::sqrt(correction2)),
                 decoupled ? static_cast<float>(1 - kLr * kDecay) : 1.0f,
                 decoupled ? 0.0f : static_cast<float>(kDecay)};
  a.clip = static_cast<const float*>(clip_in.data());
  a.skip = static_cast<const float*>(skip_in.data());
  if (copy_offset) a.copy = copy.data();
  if (corrects) a.corrections = static_cast<const float*>(corrections.data());
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{skip ? kAmaxBefore : 0});
  if (finds) a.largest = largest.data();
  Findings findings;
  machine.launch(&Kernels::adam, a);
  if (!skip) findings.compare_traffic(machine, traffic(a));
  std::vector<double> new_w = w, new_m = m, new_v = v;
  for (size_t i = 0; i < count && !skip; ++i) {
    const double scaled = g[i] * clip + (decoupled ? 0 : kDecay * w[i]);
    new_m[i] = kBeta1 * m[i] + (1 - kBeta1) * scaled;
    new_v[i] = kBeta2 * v[i] + (1 - kBeta2) * scaled * scaled;
    new_w[i] = w[i] * (decoupled ? 1 - kLr * kDecay : 1) -
               kLr * (new_m[i] / correction1) / (std::sqrt(new_v[i] / correction2) + kEps);
  }
  const double bound = skip ? 0 : 1e-6;
  findings.compare("weight", weight, new_w, bound);
  findings.compare("first", first, new_m, bound);
  findings.compare("second", second, new_v, bound);
  std::vector<double> new_copy = before;
  for (size_t i = 0; i < count && copy_offset && !skip; ++i) new_copy[i] = rounded_to(KernelType::bf16, weight[i]);
  findings.compare("copy", copy, new_copy, 0);
  const uint32_t raised = largest[0];
  if (!largest.guards_intact()) findings.say("something was written beside the amax");
  if (skip || !finds) {
    if (raised != (skip ? kAmaxBefore : 0)) findings.say("the amax was written");
  } else {
    findings.compare_amax(machine, copy_offset ? KernelType::bf16 : fp32, copy_offset ? copy : weight, raised);
  }
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  const auto add = [&](const std::string& name, Case c) {
    for (const bool finds : {false, true}) {
      c.finds = finds;
      result.push_back({finds ? name + "_amax" : name, [c](KernelMachine& machine) { return run_step(machine, c); }});
    }
  };
  for (size_t count : {1, 3, 4, 255, 1024, 1031}) {
    for (size_t offset : {0, 1}) {
      add("adamw_bf16_gradient_" + std::to_string(count) + (offset ? "_unaligned" : ""),
          {.count = count, .offset = offset, .copy_offset = 0, .gradient_type = KernelType::bf16});
      const std::string shape = std::to_string(count) + (offset ? "_unaligned" : "");
      add("adamw_" + shape, {.count = count, .offset = offset});
      for (size_t copy_offset : {0, 1, 4}) {
        add("adamw_" + shape + "_copy_" + std::to_string(copy_offset),
            {.count = count, .offset = offset, .copy_offset = copy_offset});
      }
    }
  }
  add("adamw_corrected_257", {.count = 257, .corrects = true});
  add("adam_257", {.count = 257, .decoupled = false, .clip = 1});
  add("adam_bf16_gradient_257",
      {.count = 257, .decoupled = false, .clip = 1, .corrects = true, .gradient_type = KernelType::bf16});
  add("adamw_skipped_257", {.count = 257, .clip = 1, .skip = true});
  add("adamw_skipped_257_copy", {.count = 257, .clip = 1, .skip = true, .copy_offset = 0});
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
