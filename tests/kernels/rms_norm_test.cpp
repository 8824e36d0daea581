#include <algorithm>
#include <cmath>
#include <cstring>

#include "cases.h"

namespace titan {
namespace {

struct Shape {
  KernelType type;
  int64_t rows, columns;
  bool adds;  // delta forward, d_residual and accumulation backward
  bool round_once;
  size_t offset;  // of all arrays behind a 16-byte boundary
  KernelType d_weight_type = KernelType::fp32;
};

std::string name_of(const char* what, const Shape& s) {
  return std::string(what) + "_" + name(s.type) + "_" + std::to_string(s.rows) + "x" + std::to_string(s.columns) +
         (s.adds ? "_adds" : "") + (s.round_once ? "_once" : "") + (s.offset ? "_unaligned" : "") +
         (s.d_weight_type == KernelType::bf16 ? "_bf16_gradient" : "");
}

std::vector<Shape> shapes() {
  std::vector<Shape> result;
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (int64_t columns : {1, 7, 31, 64, 101, 256, 520, 1021, 4096})
      result.push_back({type, 3, columns, true, false, 0});
    result.push_back({type, 2, 4096, true, true, 1});     // eight numbers a thread
    result.push_back({type, 2, 8192, false, false, 0});   // two packs a thread, four in fp32
    result.push_back({type, 1029, 40, true, true, 0});    // more rows than partial sums
    result.push_back({type, 1026, 132, true, false, 1});  // several rows a block of several warps
    result.push_back({type, 514, 1032, false, true, 0});  // fewer partial sums of longer rows
    result.push_back({type, 5, 96, false, true, 0});
    result.push_back({type, 4, 72, true, false, 2});
  }
  result.push_back({KernelType::bf16, 2, 16384, true, false, 0});
  for (const Shape& s :
       {Shape{KernelType::bf16, 514, 1032, false, false, 0}, Shape{KernelType::bf16, 5, 31, false, false, 1}})
    result.push_back({s.type, s.rows, s.columns, s.adds, s.round_once, s.offset, KernelType::bf16});
  return result;
}

struct Reference {
  std::vector<double> h, normed, scale;
  double largest = 0;
};

constexpr double kEpsilon = 1e-5;

Reference forward(const Shape& s, const std::vector<double>& x, const std::vector<double>& delta,
                  const std::vector<double>& weight) {
  Reference r;
  for (int64_t row = 0; row < s.rows; ++row) {
    double squares = 0;
    for (int64_t c = 0; c < s.columns; ++c) {
      const auto i = static_cast<size_t>(row * s.columns + c);
      r.h.push_back(s.adds ? rounded_to(s.type, x[i] + delta[i]) : x[i]);
      squares += r.h[i] * r.h[i];
    }
    r.scale.push_back(1 / std::sqrt(squares / static_cast<double>(s.columns) + static_cast<float>(kEpsilon)));
    for (int64_t c = 0; c < s.columns; ++c)
      r.normed.push_back(r.h[static_cast<size_t>(row * s.columns + c)] * r.scale.back() *
                         weight[static_cast<size_t>(c)]);
  }
  return r;
}

/// The amax a kernel says, against that of what it wrote.
void compare_largest(Findings& findings, uint32_t said, const Numbers& written) {
  float value;
  std::memcpy(&value, &said, sizeof(value));
  double largest = 0;
  for (size_t i = 0; i < written.size(); ++i) largest = std::max(largest, std::fabs(written[i]));
  if (value != largest) findings.say("largest is " + std::to_string(value) + ", not " + std::to_string(largest));
}

std::string run_forward(KernelMachine& machine, const Shape& s) {
  const auto count = static_cast<size_t>(s.rows * s.columns);
  const auto x = numbers(count, 1, s.type), delta = numbers(count, 2, s.type);
  auto weight = numbers(static_cast<size_t>(s.columns), 3, s.type);
  Numbers x_in(machine, s.type, x, s.offset), delta_in(machine, s.type, delta, s.offset),
      weight_in(machine, s.type, weight, s.offset);
  Numbers sum(machine, s.type, count, s.offset), normed(machine, s.type, count, s.offset);
  MachineArray<float> scale(machine, static_cast<size_t>(s.rows));
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{0});
  const RmsNormForward a{s.type,
                         s.rows,
                         s.columns,
                         static_cast<float>(kEpsilon),
                         s.round_once,
                         x_in.data(),
                         s.adds ? delta_in.data() : nullptr,
                         weight_in.data(),
                         s.adds ? sum.data() : nullptr,
                         normed.data(),
                         scale.data(),
                         largest.data()};
  Findings findings;
  if (!supported(a)) findings.say("is not supported");
  machine.launch(&Kernels::rms_norm_forward, a);
  findings.compare_traffic(machine, traffic(a));
  const Reference r = forward(s, x, delta, weight);
  if (s.adds) findings.compare("sum", sum, r.h, 0);
  findings.compare("scale", scale, r.scale, 2e-6);
  findings.compare("normed", normed, r.normed, (s.round_once ? 1 : 2) * bound_of(s.type), 0.1);
  compare_largest(findings, largest[0], normed);
  return findings.text();
}

std::string run_backward(KernelMachine& machine, const Shape& s) {
  const auto count = static_cast<size_t>(s.rows * s.columns);
  const auto columns = static_cast<size_t>(s.columns);
  const auto x = numbers(count, 1, s.type), dy = numbers(count, 4, s.type), past = numbers(count, 5, s.type);
  const auto weight = numbers(columns, 3, s.type), before = numbers(columns, 6, s.d_weight_type);
  const Shape plain{s.type, s.rows, s.columns, false, false, 0};
  const Reference r = forward(plain, x, {}, weight);
  std::vector<double> dx, d_weight(columns, 0.0);
  if (s.adds) d_weight = before;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto first = static_cast<size_t>(row * s.columns);
    const double scale = static_cast<float>(r.scale[static_cast<size_t>(row)]);
    double projection = 0;
    for (size_t c = 0; c < columns; ++c) {
      projection += dy[first + c] * weight[c] * x[first + c] * scale / static_cast<double>(columns);
      d_weight[c] += dy[first + c] * x[first + c] * scale;
    }
    for (size_t c = 0; c < columns; ++c) {
      const double through = (dy[first + c] * weight[c] - x[first + c] * scale * projection) * scale;
      dx.push_back(through + (s.adds ? past[first + c] : 0));
    }
  }
  Numbers x_in(machine, s.type, x, s.offset), dy_in(machine, s.type, dy, s.offset),
      past_in(machine, s.type, past, s.offset);
  Numbers weight_in(machine, s.type, weight, s.offset), dx_out(machine, s.type, count, s.offset);
  Numbers scale_in(machine, KernelType::fp32, r.scale), d_weight_out(machine, s.d_weight_type, before);
  MachineArray<float> partials(machine, static_cast<size_t>(rms_norm_partials(s.rows, s.columns)) * columns);
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{0});
  RmsNormBackward a{s.type,
                    s.rows,
                    s.columns,
                    dy_in.data(),
                    s.adds ? past_in.data() : nullptr,
                    x_in.data(),
                    weight_in.data(),
                    static_cast<const float*>(scale_in.data()),
                    dx_out.data(),
                    partials.data(),
                    d_weight_out.data(),
                    s.adds,
                    largest.data(),
                    s.d_weight_type};
  Findings findings;
  if (!supported(a)) findings.say("is not supported");
  machine.launch(&Kernels::rms_norm_backward, a);
  findings.compare_traffic(machine, traffic(a));
  double widest = 1;
  for (double value : r.scale) widest = std::max(widest, value);
  findings.compare("dx", dx_out, dx, bound_of(s.type), widest);
  const double rows = std::sqrt(static_cast<double>(s.rows));
  if (s.d_weight_type == KernelType::bf16) {
    findings.compare("d_weight", d_weight_out, d_weight, 0x1.1p-8,
                     rows * 0.1);  // half a unit in the last place, of 8 bits
  } else {
    findings.compare("d_weight", d_weight_out, d_weight, 1e-6, rows * 10);
  }
  compare_largest(findings, largest[0], dx_out);
  // Without a weight gradient nothing else changes.
  Numbers again(machine, s.type, count, s.offset);
  a.dx = again.data();
  a.partials = nullptr;
  machine.launch(&Kernels::rms_norm_backward, a);
  findings.compare_traffic(machine, traffic(a));
  for (size_t i = 0; i < count; ++i)
    if (again[i] != dx_out[i]) findings.say("dx differs where no weight gradient is wanted");
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  for (const Shape& s : shapes()) {
    result.push_back({name_of("forward", s), [s](KernelMachine& machine) { return run_forward(machine, s); }});
    result.push_back({name_of("backward", s), [s](KernelMachine& machine) { return run_backward(machine, s); }});
  }
  for (KernelCase& one : result) one.name = "rms_norm_" + one.name;
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
