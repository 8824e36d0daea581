#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "cases.h"

namespace titan {
namespace {

/// The value of a float8 number, from its definition.
double value_of(KernelFloat8 format, uint8_t bits) {
  const int mantissa_bits = format == KernelFloat8::e4m3 ? 3 : 2, bias = format == KernelFloat8::e4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (format == KernelFloat8::e4m3 && (bits & 0x7f) == 0x7f) return NAN;
  if (format == KernelFloat8::e5m2 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
  const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
  return sign * (exponent ? std::ldexp(1 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias));
}

double most(KernelFloat8 format) { return format == KernelFloat8::e4m3 ? 448 : 57344; }

/// Every finite number of the format, in order.
std::vector<std::pair<double, uint8_t>> finite_numbers(KernelFloat8 format) {
  std::vector<std::pair<double, uint8_t>> result;
  for (int bits = 0; bits < 128; ++bits) {
    const double value = value_of(format, static_cast<uint8_t>(bits));
    if (std::isfinite(value)) result.emplace_back(value, static_cast<uint8_t>(bits));
  }
  return result;
}

/// By search among all numbers: the nearest, of two the one whose last bit is 0.
uint8_t nearest(KernelFloat8 format, double value) {
  static const auto e4m3 = finite_numbers(KernelFloat8::e4m3), e5m2 = finite_numbers(KernelFloat8::e5m2);
  const auto& all = format == KernelFloat8::e4m3 ? e4m3 : e5m2;
  const double size = std::min(std::fabs(value), most(format));
  auto above = std::lower_bound(all.begin(), all.end(), std::pair<double, uint8_t>{size, 0});
  uint8_t bits = above->second;
  if (above->first != size) {
    const auto below = above - 1;
    const double to_above = above->first - size, to_below = size - below->first;
    if (to_below < to_above || (to_below == to_above && below->second % 2 == 0)) bits = below->second;
  }
  return static_cast<uint8_t>(bits | (std::signbit(value) ? 0x80 : 0));
}

struct Shape {
  KernelType type;
  KernelFloat8 format;
  KernelExtent extent;
  int64_t rows, columns;
  bool data, transposed;
};

size_t scales_of(const Shape& s) {
  return s.extent == KernelExtent::matrix ? 1 : static_cast<size_t>(s.extent == KernelExtent::row ? s.rows : s.columns);
}

std::string run_cast(KernelMachine& machine, const Shape& s) {
  const auto count = static_cast<size_t>(s.rows * s.columns);
  const auto x = numbers(count, 1, s.type, 30);
  std::vector<double> scales;
  for (size_t i = 0; i < scales_of(s); ++i) scales.push_back(static_cast<float>(3.7 + static_cast<double>(i % 7)));
  Numbers in(machine, s.type, x), scale_in(machine, KernelType::fp32, scales);
  MachineArray<uint8_t> data(machine, count), transposed(machine, count);
  const Float8Cast a{s.type,
                     s.format,
                     s.rows,
                     s.columns,
                     in.data(),
                     s.extent,
                     static_cast<const float*>(scale_in.data()),
                     s.data ? data.data() : nullptr,
                     s.transposed ? transposed.data() : nullptr};
  Findings findings;
  if (!supported(a)) findings.say("is not supported");
  machine.launch(&Kernels::float8_cast, a);
  findings.compare_traffic(machine, traffic(a));
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t column = 0; column < s.columns; ++column) {
      const auto at = static_cast<size_t>(row * s.columns + column), other = static_cast<size_t>(column * s.rows + row);
      const auto own = static_cast<size_t>(s.extent == KernelExtent::matrix ? 0
                                           : s.extent == KernelExtent::row  ? row
                                                                            : column);
      const uint8_t expected = nearest(s.format, static_cast<float>(x[at]) * static_cast<float>(scales[own]));
      if (s.data && data[at] != expected) findings.say("data differs at " + std::to_string(at));
      if (s.transposed && transposed[other] != expected) findings.say("transposed differs at " + std::to_string(other));
    }
  }
  if (!data.guards_intact() || !transposed.guards_intact()) findings.say("something was written beside the result");
  return findings.text();
}

/// Every number of the format, every tie between two, what lies just beside, and what saturates.
std::string run_every_value(KernelMachine& machine, KernelFloat8 format) {
  std::vector<double> x;
  const auto all = finite_numbers(format);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const double tie = (all[i].first + all[i + 1].first) / 2;
    for (double value : {all[i].first, tie, static_cast<double>(std::nextafter(static_cast<float>(tie), 0.0f)),
                         static_cast<double>(std::nextafter(static_cast<float>(tie), 1e9f))}) {
      x.push_back(value);
      x.push_back(-value);
    }
  }
  for (double value : {most(format), most(format) * 1.01, 1e30, static_cast<double>(INFINITY), 1e-30})
    x.push_back(value);
  x.push_back(NAN);
  while (x.size() % 8 != 0) x.push_back(0);
  Numbers in(machine, KernelType::fp32, x), scale(machine, KernelType::fp32, std::vector<double>{1});
  MachineArray<uint8_t> data(machine, x.size());
  machine.launch(&Kernels::float8_cast,
                 {KernelType::fp32, format, 1, static_cast<int64_t>(x.size()), in.data(), KernelExtent::matrix,
                  static_cast<const float*>(scale.data()), data.data(), nullptr});
  Findings findings;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool right = std::isnan(x[i]) ? std::isnan(value_of(format, data[i])) : data[i] == nearest(format, x[i]);
    if (!right) findings.say(std::to_string(x[i]) + " becomes " + std::to_string(value_of(format, data[i])));
  }
  return findings.text();
}

std::string run_largest(KernelMachine& machine, KernelType type, KernelExtent extent, int64_t rows, int64_t columns,
                        size_t offset) {
  const Shape s{type, KernelFloat8::e4m3, extent, rows, columns, false, false};
  auto x = numbers(static_cast<size_t>(rows * columns), 5, type, 30);
  std::vector<uint32_t> before(scales_of(s), 0);
  std::vector<double> expected(scales_of(s), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
    double& largest = expected[extent == KernelExtent::matrix ? 0 : extent == KernelExtent::row ? row : column];
    largest = std::max(largest, std::fabs(x[i]));
  }
  Numbers in(machine, type, x, offset);
  MachineArray<uint32_t> largest(machine, before);
  const Amax a{type, rows, columns, extent, in.data(), largest.data()};
  Findings findings;
  machine.launch(&Kernels::amax, a);
  findings.compare_traffic(machine, traffic(a));
  for (size_t i = 0; i < expected.size(); ++i) {
    const uint32_t bits = largest[i];
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (value != expected[i]) findings.say("largest " + std::to_string(i) + " is " + std::to_string(value));
  }
  return findings.text();
}

/// float8.h's rule, in fp64.
float scale_of(KernelFloat8 format, bool power_of_two, float amax) {
  const double least = 1e-12;
  auto scale = static_cast<float>(most(format) / (amax < least ? least : amax));
  if (!power_of_two || std::isnan(scale) || scale == 0) return scale;
  return static_cast<float>(std::exp2(std::floor(std::log2(static_cast<double>(scale)))));
}

bool same(float actual, float expected) { return actual == expected || (std::isnan(actual) && std::isnan(expected)); }

/// `arrays` of `each` amaxes, which lie apart; those that are odd come first.
std::string run_scales(KernelMachine& machine, KernelFloat8 format, bool power_of_two, int arrays, size_t each) {
  auto amaxes = numbers(static_cast<size_t>(arrays) * each, 9, KernelType::fp32, 30);
  for (double& amax : amaxes) amax = std::fabs(amax);
  const std::vector<double> odd{NAN, INFINITY, 0, 1e-13, 3e38, 1e-40, 448, 57344};
  for (size_t i = 0; i < std::min(odd.size(), amaxes.size()); ++i) amaxes[i] = static_cast<float>(odd[i]);
  std::vector<std::unique_ptr<Numbers>> in;
  MachineArray<float> values(machine, amaxes.size()), inverses(machine, amaxes.size());
  ScalesOfAmaxes a;
  a.format = format;
  a.power_of_two = power_of_two;
  a.arrays = arrays;
  a.each = static_cast<int64_t>(each);
  for (int i = 0; i < arrays; ++i) {
    const auto first = amaxes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * each);
    in.push_back(std::make_unique<Numbers>(machine, KernelType::fp32,
                                           std::vector<double>(first, first + static_cast<std::ptrdiff_t>(each)), 1));
    a.largest[i] = static_cast<const float*>(in.back()->data());
  }
  a.values = values.data();
  a.inverses = inverses.data();
  machine.launch(&Kernels::scales_of_amaxes, a);
  Findings findings;
  findings.compare_traffic(machine, traffic(a));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    const float expected = scale_of(format, power_of_two, static_cast<float>(amaxes[i]));
    if (!same(values[i], expected) || !same(inverses[i], 1 / expected))
      findings.say(std::to_string(amaxes[i]) + " becomes " + std::to_string(values[i]) + " and " +
                   std::to_string(inverses[i]));
  }
  if (!values.guards_intact() || !inverses.guards_intact()) findings.say("something was written beside the scales");
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  for (KernelFloat8 format : {KernelFloat8::e4m3, KernelFloat8::e5m2}) {
    const std::string format_name = format == KernelFloat8::e4m3 ? "e4m3" : "e5m2";
    result.push_back({"float8_every_value_" + format_name,
                      [=](KernelMachine& machine) { return run_every_value(machine, format); }});
    for (bool power_of_two : {false, true}) {
      for (auto [arrays, each] : {std::pair{1, 1}, {3, 1}, {kMostAmaxArrays, 1}, {1, 300}, {2, 129}}) {
        result.push_back({"float8_scales_" + format_name + (power_of_two ? "_power_" : "_") + std::to_string(arrays) +
                              "_" + std::to_string(each),
                          [=](KernelMachine& machine) {
                            return run_scales(machine, format, power_of_two, arrays, static_cast<size_t>(each));
                          }});
      }
    }
    for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
      int number = 0;
      for (KernelExtent extent : {KernelExtent::matrix, KernelExtent::row, KernelExtent::column}) {
        for (const Shape& s :
             {Shape{type, format, extent, 16, 16, true, true}, Shape{type, format, extent, 64, 128, true, true},
              Shape{type, format, extent, 68, 200, false, true}, Shape{type, format, extent, 7, 72, true, false}}) {
          result.push_back({"float8_cast_" + format_name + "_" + name(type) + "_" + std::to_string(number++),
                            [s](KernelMachine& machine) { return run_cast(machine, s); }});
        }
      }
    }
  }
  int number = 0;
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (KernelExtent extent : {KernelExtent::matrix, KernelExtent::row, KernelExtent::column}) {
      for (auto [rows, columns, offset] : {std::tuple{3, 7, 1}, {70, 264, 0}, {131, 300, 0}, {5, 5000, 0}}) {
        result.push_back(
            {std::string("largest_") + name(type) + "_" + std::to_string(number++), [=](KernelMachine& machine) {
               return run_largest(machine, type, extent, rows, columns, static_cast<size_t>(offset));
             }});
      }
    }
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
