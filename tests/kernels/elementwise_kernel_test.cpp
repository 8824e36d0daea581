#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cases.h"
#include "support/dense_heads.h"

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
  const SwigluForward forward{type, 1, n, n, gate_in.data(), up_in.data(), result.data(), slots};
  machine.launch(&Kernels::swiglu_forward, forward);
  findings.compare_traffic(machine, traffic(forward));
  findings.compare("result", result, y, bound_of(type));
  const SwigluBackward backward{type,
                                1,
                                n,
                                n,
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

void* at_element(Numbers& numbers, KernelType type, int64_t element) {
  return static_cast<unsigned char*>(numbers.data()) + element * bytes_of(type);
}

/// Gate and up as columns of one matrix [rows, 2 · columns + beside], their gradients as columns of another.
std::string run_swiglu_columns(KernelMachine& machine, KernelType type, int64_t rows, int64_t columns, int64_t beside) {
  const int64_t stride = 2 * columns + beside;
  const auto inputs = numbers(static_cast<size_t>(rows * stride), 1, type, 3);
  const auto dy = numbers(static_cast<size_t>(rows * columns), 3, type);
  Numbers inputs_in(machine, type, inputs), dy_in(machine, type, dy), result(machine, type, dy.size());
  Numbers gradients(machine, type, numbers(inputs.size(), 4, type));
  std::vector<double> y, expected = numbers(inputs.size(), 4, type);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto gate_at = static_cast<size_t>(row * stride + column), up_at = gate_at + static_cast<size_t>(columns);
      const double gate = inputs[gate_at], up = inputs[up_at], s = sigmoid(gate);
      const double d = dy[static_cast<size_t>(row * columns + column)];
      y.push_back(gate * s * up);
      expected[gate_at] = d * up * s * (1 + gate * (1 - s));
      expected[up_at] = d * gate * s;
    }
  }
  Findings findings;
  const SwigluForward forward{
      type, rows, columns, stride, inputs_in.data(), at_element(inputs_in, type, columns), result.data()};
  machine.launch(&Kernels::swiglu_forward, forward);
  findings.compare_traffic(machine, traffic(forward));
  findings.compare("result", result, y, bound_of(type));
  SwigluBackward backward{type, rows, columns, stride, stride, dy_in.data(), inputs_in.data()};
  backward.up = at_element(inputs_in, type, columns);
  backward.d_gate = gradients.data();
  backward.d_up = at_element(gradients, type, columns);
  machine.launch(&Kernels::swiglu_backward, backward);
  findings.compare_traffic(machine, traffic(backward));
  findings.compare("gradients, and what is beside them", gradients, expected, bound_of(type));
  return findings.text();
}

std::string run_swiglu_extremes(KernelMachine& machine) {
  const std::vector<double> gate{-300, 300, -100, 0, -0.0, 88, -88, 1e30, -1e30};
  Numbers gate_in(machine, KernelType::fp32, gate),
      up_in(machine, KernelType::fp32, std::vector<double>(gate.size(), 2.0));
  Numbers result(machine, KernelType::fp32, gate.size());
  const auto count = static_cast<int64_t>(gate.size());
  machine.launch(&Kernels::swiglu_forward,
                 {KernelType::fp32, 1, count, count, gate_in.data(), up_in.data(), result.data(), nullptr});
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
  set_dense_strides(a);
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

/// Query, key and value as columns of one matrix [tokens, heads of all]: turned in place, and from there to dense rows.
std::string run_rotation_of_columns(KernelMachine& machine, KernelType type, int64_t query_heads, int64_t key_heads,
                                    int64_t head_dim) {
  constexpr int64_t kTokens = 7;
  const int64_t heads = query_heads + 2 * key_heads, stride = heads * head_dim;
  const auto given = numbers(static_cast<size_t>(kTokens * stride), 1, type);
  const auto table = numbers(static_cast<size_t>(kTokens * head_dim), 3, KernelType::fp32);
  std::vector<double> matrix = given, query;
  for (int64_t token = 0; token < kTokens; ++token) {
    for (int64_t i = 0; i < (query_heads + key_heads) * head_dim; i += 2) {
      const auto at = static_cast<size_t>(token * stride + i);
      const auto factor = static_cast<size_t>(token * head_dim + i % head_dim);
      matrix[at] = given[at] * table[factor] - given[at + 1] * table[factor + 1];
      matrix[at + 1] = given[at] * table[factor + 1] + given[at + 1] * table[factor];
      if (i < query_heads * head_dim) query.insert(query.end(), {matrix[at], matrix[at + 1]});
    }
  }
  Numbers in_place(machine, type, given), dense(machine, type, query.size());
  Numbers table_in(machine, KernelType::fp32, table);
  RotaryTurn a;
  a.type = type;
  a.tokens = a.length = kTokens;
  a.head_dim = head_dim;
  a.query_heads = query_heads;
  a.key_heads = key_heads;
  a.table = static_cast<const float*>(table_in.data());
  a.query = in_place.data();
  a.query_stride = a.key_stride = a.turned_key_stride = stride;
  Findings findings;
  RotaryTurn to_dense = a;
  to_dense.turned_query = dense.data();
  to_dense.turned_query_stride = query_heads * head_dim;
  machine.launch(&Kernels::rotate, to_dense);
  findings.compare_traffic(machine, traffic(to_dense));
  findings.compare("query in dense rows", dense, query, bound_of(type), 2);
  a.turned_query = in_place.data();
  a.turned_query_stride = stride;
  a.key = a.turned_key = at_element(in_place, type, query_heads * head_dim);
  if (!supported(a)) findings.say("is not supported");
  machine.launch(&Kernels::rotate, a);
  findings.compare_traffic(machine, traffic(a));
  findings.compare("query, key and value", in_place, matrix, bound_of(type), 2);
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
    for (const auto& [rows, columns, beside] :
         std::vector<std::array<int64_t, 3>>{{1, 8, 0}, {3, 7, 0}, {5, 64, 3}, {13, 96, 8}, {33, 520, 0}}) {
      result.push_back(
          {fmt::format("swiglu_columns_{}_{}_{}_{}", name(type), rows, columns, beside),
           [=](KernelMachine& machine) { return run_swiglu_columns(machine, type, rows, columns, beside); }});
    }
    for (const auto& [query_heads, key_heads, head_dim] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 2}, {3, 1, 16}, {4, 2, 10}, {8, 2, 64}}) {
      result.push_back({fmt::format("rotate_columns_{}_{}_{}_{}", name(type), query_heads, key_heads, head_dim),
                        [=](KernelMachine& machine) {
                          return run_rotation_of_columns(machine, type, query_heads, key_heads, head_dim);
                        }});
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
