#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cases.h"

namespace titan {
namespace {

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void compare_largest(Findings& findings, const char* what, uint32_t said, const Numbers& written) {
  double largest = 0;
  for (size_t i = 0; i < written.size(); ++i) largest = std::max(largest, std::fabs(written[i]));
  if (as_float(said) != largest)
    findings.say(std::string("largest ") + what + " is " + std::to_string(as_float(said)) + ", not " +
                 std::to_string(largest));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::string run_swiglu(KernelMachine& machine, KernelType type, size_t count, size_t offset, bool track) {
  const auto gate = numbers(count, 1, type, 3), up = numbers(count, 2, type), dy = numbers(count, 3, type);
  Numbers gate_in(machine, type, gate, offset), up_in(machine, type, up, offset), dy_in(machine, type, dy, offset);
  Numbers result(machine, type, count, offset), d_gate(machine, type, count, offset),
      d_up(machine, type, count, offset);
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{0, 0, 0});
  uint32_t* slots = track ? largest.data() : nullptr;
  std::vector<double> y, dg, du;
  for (size_t i = 0; i < count; ++i) {
    const double s = sigmoid(gate[i]);
    y.push_back(gate[i] * s * up[i]);
    dg.push_back(dy[i] * up[i] * s * (1 + gate[i] * (1 - s)));
    du.push_back(dy[i] * gate[i] * s);
  }
  Findings findings;
  const auto n = static_cast<int64_t>(count);
  const SwigluForward forward{type, n, gate_in.data(), up_in.data(), result.data(), slots};
  machine.launch(&Kernels::swiglu_forward, forward);
  findings.compare_traffic(machine, traffic(forward));
  findings.compare("result", result, y, bound_of(type));
  const SwigluBackward backward{type,
                                n,
                                dy_in.data(),
                                gate_in.data(),
                                up_in.data(),
                                d_gate.data(),
                                d_up.data(),
                                track ? slots + 1 : nullptr,
                                track ? slots + 2 : nullptr};
  machine.launch(&Kernels::swiglu_backward, backward);
  findings.compare_traffic(machine, traffic(backward));
  findings.compare("d_gate", d_gate, dg, bound_of(type));
  findings.compare("d_up", d_up, du, bound_of(type));
  if (track) {
    compare_largest(findings, "result", largest[0], result);
    compare_largest(findings, "d_gate", largest[1], d_gate);
    compare_largest(findings, "d_up", largest[2], d_up);
  }
  return findings.text();
}

std::string run_swiglu_extremes(KernelMachine& machine) {
  const std::vector<double> gate{-300, 300, -100, 0, -0.0, 88, -88, 1e30, -1e30};
  Numbers gate_in(machine, KernelType::fp32, gate),
      up_in(machine, KernelType::fp32, std::vector<double>(gate.size(), 2.0));
  Numbers result(machine, KernelType::fp32, gate.size());
  machine.launch(&Kernels::swiglu_forward, {KernelType::fp32, static_cast<int64_t>(gate.size()), gate_in.data(),
                                            up_in.data(), result.data(), nullptr});
  std::vector<double> expected;
  for (double g : gate) expected.push_back(static_cast<float>(2 * g * sigmoid(g)));
  Findings findings;
  findings.compare("result", result, expected, 1e-5);
  return findings.text();
}

struct RotationShape {
  KernelType type;
  int64_t samples, length, query_heads, key_heads, head_dim;
  int64_t position_rows;  // 0: none
  bool in_place;
  bool inverse;
  size_t offset;
};

std::string run_rotation(KernelMachine& machine, const RotationShape& s) {
  const int64_t tokens = s.samples * s.length, places = s.length * std::max<int64_t>(s.position_rows, 1);
  const auto q = numbers(static_cast<size_t>(tokens * s.query_heads * s.head_dim), 1, s.type);
  const auto k = numbers(static_cast<size_t>(tokens * s.key_heads * s.head_dim), 2, s.type);
  const auto table = numbers(static_cast<size_t>(places * s.head_dim), 3, KernelType::fp32);
  std::vector<int64_t> positions(static_cast<size_t>(places));
  std::iota(positions.rbegin(), positions.rend(), 0);
  Numbers q_in(machine, s.type, q, s.offset), k_in(machine, s.type, k, s.offset),
      table_in(machine, KernelType::fp32, table);
  Numbers q_out(machine, s.type, q.size(), s.offset), k_out(machine, s.type, k.size(), s.offset);
  MachineArray<int64_t> positions_in(machine, positions);
  Numbers& q_result = s.in_place ? q_in : q_out;
  Numbers& k_result = s.in_place ? k_in : k_out;
  RotaryTurn a;
  a.type = s.type;
  a.tokens = tokens;
  a.length = s.length;
  a.head_dim = s.head_dim;
  a.query_heads = s.query_heads;
  a.key_heads = s.key_heads;
  a.query = q_in.data();
  a.key = s.key_heads > 0 ? k_in.data() : nullptr;
  a.turned_query = q_result.data();
  a.turned_key = s.key_heads > 0 ? k_result.data() : nullptr;
  a.table = static_cast<const float*>(table_in.data());
  a.positions = s.position_rows > 0 ? positions_in.data() : nullptr;
  a.position_rows = std::max<int64_t>(s.position_rows, 1);
  a.inverse = s.inverse;
  MachineArray<uint32_t> largest(machine, std::vector<uint32_t>{0, 0});
  if (s.inverse) a.largest_query = largest.data();
  if (s.inverse && s.key_heads > 0) a.largest_key = largest.data() + 1;
  const auto turned = [&](const std::vector<double>& x, int64_t heads) {
    std::vector<double> result;
    for (int64_t token = 0; token < tokens; ++token) {
      int64_t place = token % s.length;
      if (s.position_rows > 0) place = positions[static_cast<size_t>(s.position_rows == 1 ? place : token)];
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < s.head_dim; i += 2) {
          const auto at = static_cast<size_t>((token * heads + head) * s.head_dim + i);
          const auto factor = static_cast<size_t>(place * s.head_dim + i);
          const double real = table[factor], imaginary = table[factor + 1] * (s.inverse ? -1 : 1);
          result.push_back(x[at] * real - x[at + 1] * imaginary);
          result.push_back(x[at] * imaginary + x[at + 1] * real);
        }
      }
    }
    return result;
  };
  Findings findings;
  if (!supported(a)) findings.say("is not supported");
  machine.launch(&Kernels::rotate, a);
  findings.compare_traffic(machine, traffic(a));
  findings.compare("query", q_result, turned(q, s.query_heads), bound_of(s.type), 2);
  if (s.key_heads > 0) findings.compare("key", k_result, turned(k, s.key_heads), bound_of(s.type), 2);
  if (a.largest_query) compare_largest(findings, "query", largest[0], q_result);
  if (a.largest_key) compare_largest(findings, "key", largest[1], k_result);
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"swiglu_extremes", run_swiglu_extremes}};
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (size_t count : {1, 7, 8, 1021, 2048, 8192, 17001, 40960}) {
      for (size_t offset : {0, 1}) {
        const std::string shape = std::string(name(type)) + "_" + std::to_string(count) + (offset ? "_unaligned" : "");
        result.push_back({"swiglu_" + shape, [=](KernelMachine& machine) {
                            return run_swiglu(machine, type, count, offset, count != 1021);
                          }});
      }
    }
    const std::vector<RotationShape> rotations{
        {type, 1, 1, 1, 1, 2, 0, true, false, 0},    {type, 2, 5, 3, 1, 16, 0, true, false, 0},
        {type, 2, 7, 4, 2, 128, 0, false, true, 0},  {type, 3, 5, 32, 8, 64, 1, true, true, 0},
        {type, 2, 11, 3, 2, 10, 2, false, false, 0}, {type, 1, 13, 5, 0, 24, 2, true, false, 0},
        {type, 2, 3, 4, 4, 16, 0, true, false, 2},   {type, 1, 3, 33, 11, 80, 1, false, false, 0},
        {type, 2, 5, 3, 2, 10, 0, false, true, 0},   {type, 1, 7, 5, 0, 24, 0, false, true, 0},
        {type, 1, 5, 40, 8, 128, 0, false, true, 0}};
    for (size_t i = 0; i < rotations.size(); ++i) {
      RotationShape s = rotations[i];
      if (s.samples == 1 && s.position_rows == 2) s.position_rows = 1;
      result.push_back({std::string("rotate_") + name(type) + "_" + std::to_string(i),
                        [s](KernelMachine& machine) { return run_rotation(machine, s); }});
    }
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
