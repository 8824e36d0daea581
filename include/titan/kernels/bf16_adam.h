// One Adam or AdamW step over a parameter with bf16 weight or moments, which are rounded stochastically; and that
// rounding alone. Raw pointers and sizes; no tensors.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// AdamStep with other dtypes. Element i uses the random bits of place.index(i). Only fp32 weights have a copy.
struct Bf16AdamStep {
  void* weight = nullptr;
  const void* gradient = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  int64_t count = 0;
  KernelType weight_type = KernelType::bf16;
  KernelType moment_type = KernelType::bf16;
  KernelType gradient_type = KernelType::fp32;
  RoundingKey key{};
  RoundingPlace place{};
  AdamConstants constants{};
  const float* clip = nullptr;
  const float* skip = nullptr;
  void* copy = nullptr;
  const float* corrections = nullptr;
  uint32_t* largest = nullptr;  // amax slot of the copy, or else of the rounded weights; or null
};

/// Reads four arrays, writes three and the copy; plus the scalars. Elements that share a pack with a zero, tiny,
/// huge or non-finite value are read a second time.
constexpr KernelTraffic traffic(const Bf16AdamStep& a) {
  const int64_t kept = bytes_of(a.weight_type) + 2 * bytes_of(a.moment_type);
  const bool copies = a.copy && a.weight_type == KernelType::fp32;
  return {a.count * (kept + bytes_of(a.gradient_type)) + (a.corrections ? 16 : 8), a.count * (kept + (copies ? 2 : 0)),
          0};
}

/// fp32 `values` → bf16 `target`, with the random bits of this kept number in a step. Nothing is written if *skip is
/// not 0.
struct RoundStochastically {
  const float* values = nullptr;
  void* target = nullptr;
  int64_t count = 0;
  KeptNumber number = KeptNumber::weight;
  RoundingKey key{};
  RoundingPlace place{};
  const float* skip = nullptr;
};

constexpr KernelTraffic traffic(const RoundStochastically& a) { return {a.count * 4 + 4, a.count * 2, 0}; }

}  // namespace titan
