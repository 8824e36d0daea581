// Hashes of weights and moments, by which ranks find out that bits have changed: of memory on a host XXH3 of the bytes,
// on a GPU an exact sum of the numbers' bits times odd factors. Both notice every change of a single bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace titan {

struct TensorState {
  int64_t hash = 0;
  bool is_finite = true;  // every number of it

  bool operator==(const TensorState&) const = default;
};

/// The state of each tensor. A tensor is contiguous, of any shape, in fp32, bf16, or a dtype of one byte, whose values
/// count as finite. Hashes of a host and of a GPU cannot be compared with each other. Waits for the device, once.
std::vector<TensorState> states_of(std::span<const at::Tensor> tensors);

/// How a GPU hashes: by tensor operations alone, int64 [hash, 0 if finite] of `tensor`, on its device.
at::Tensor state_by_operations(const at::Tensor& tensor);

// Loops over memory (cpu_state_hash.cpp).

/// XXH3 of `bytes` bytes.
int64_t hash_of_bytes(const void* data, int64_t bytes);
/// True if none of `count` fp32 or bf16 numbers is infinite or NaN.
bool are_finite(const float* values, int64_t count);
bool are_finite(const uint16_t* bfloat16_bits, int64_t count);

}  // namespace titan
