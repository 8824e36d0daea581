#include "titan/model/initialise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "titan/base/error.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

/// Standard normal numbers 0 and 1 of a counter block: Box & Muller, 1958.
std::pair<double, double> normal_pair(uint64_t seed, uint64_t stream, uint64_t block) {
  const PhiloxBlock bits = philox_at(seed, stream, block);
  const double radius = std::sqrt(-2 * std::log(unit_interval(bits[0])));
  const double angle = 2 * std::numbers::pi * unit_interval(bits[1]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double standard_normal(uint64_t seed, uint64_t stream, int64_t index) {
  auto [even, odd] = normal_pair(seed, stream, static_cast<uint64_t>(index) / 2);
  return index % 2 == 0 ? even : odd;
}

}  // namespace

double initial_value(const Initialiser& initialiser, uint64_t seed, uint64_t name_key, int64_t index) {
  if (initialiser.kind == Initialiser::Kind::ones) return 1.0;
  double value = standard_normal(seed, name_key, index) * initialiser.standard_deviation;
  if (initialiser.kind == Initialiser::Kind::normal) return value;
  // Redraws use other keys of the same stream; the bounds leave at least a third of the mass for every model here.
  constexpr uint64_t kNextAttempt = 0x9E3779B97F4A7C15;
  for (uint64_t key = seed; value < initialiser.lower || value > initialiser.upper;) {
    key += kNextAttempt;
    value = standard_normal(key, name_key, index) * initialiser.standard_deviation;
  }
  return value;
}

void initialise(Parameter& parameter, const Box& box, uint64_t seed) {
  const Initialiser& initialiser = parameter.spec().initialiser;
  if (initialiser.kind == Initialiser::Kind::ones) {
    parameter.master.fill_(1.0);
    return;
  }
  TITAN_CHECK(box.extent.size() == 2 && parameter.spec().shape.size() == 2, parameter.name(), box.extent.size());
  const uint64_t key = name_key(parameter.name());
  const int64_t columns = parameter.spec().shape[1];
  at::Tensor values = at::empty(box.extent, at::TensorOptions(at::kFloat));
  float* data = values.mutable_data_ptr<float>();
  at::parallel_for(0, box.extent[0], 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = (box.offset[0] + row) * columns + box.offset[1];
      for (int64_t column = 0; column < box.extent[1]; ++column) {
        data[row * box.extent[1] + column] = static_cast<float>(initial_value(initialiser, seed, key, first + column));
      }
    }
  });
  parameter.master.copy_(values);
}

}  // namespace titan
