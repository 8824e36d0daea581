#include "titan/parallel/state_hash.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

/// Any odd number: a product with it loses no bit modulo 2⁶⁴, so a changed bit always changes the sum.
constexpr int64_t kOddFactor = 0x1E3779B97F4A7C15;
/// Elements that are widened to 64 bits at a time: 8 MiB for each of three intermediate tensors.
constexpr int64_t kChunk = int64_t{1} << 20;

/// Of other dtypes no function here finds numbers that are not finite.
void check_hashable(const at::Tensor& tensor) {
  TITAN_CHECK(tensor.defined() && tensor.is_contiguous(), summary_of(tensor));
  const at::ScalarType type = tensor.scalar_type();
  TITAN_CHECK(type == at::kFloat || type == at::kBFloat16 || tensor.element_size() == 1, summary_of(tensor));
}

at::ScalarType bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 4:
      return at::kInt;
    case 2:
      return at::kShort;
    default:
      return at::kByte;
  }
}

/// Of what state_by_operations returns.
TensorState state_from(const at::Tensor& numbers) {
  const auto* values = numbers.const_data_ptr<int64_t>();
  return {values[0], values[1] == 0};
}

TensorState state_on_host(const at::Tensor& tensor) {
  TensorState state{hash_of_bytes(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()))};
  if (tensor.scalar_type() == at::kFloat) state.is_finite = are_finite(tensor.const_data_ptr<float>(), tensor.numel());
  if (tensor.scalar_type() == at::kBFloat16) {
    state.is_finite = are_finite(static_cast<const uint16_t*>(tensor.const_data_ptr()), tensor.numel());
  }
  return state;
}

}  // namespace

at::Tensor state_by_operations(const at::Tensor& tensor) {
  check_hashable(tensor);
  const at::TensorOptions numbers = tensor.options().dtype(at::kLong);
  const at::Tensor flat = tensor.view({-1});
  const at::Tensor bits = flat.view(bits_of(tensor));
  const at::Tensor factors = (at::arange(std::min(kChunk, flat.numel()), numbers) * 2 + 1) * kOddFactor;
  at::Tensor hash = at::zeros({}, numbers), odd_chunks = at::zeros({}, numbers);
  for (int64_t first = 0; first < flat.numel(); first += kChunk) {
    const int64_t count = std::min(kChunk, flat.numel() - first);
    hash = hash * kOddFactor + (bits.narrow(0, first, count).to(at::kLong) * factors.narrow(0, 0, count)).sum();
    if (tensor.element_size() == 1) continue;
    odd_chunks = odd_chunks + at::isfinite(flat.narrow(0, first, count).abs().amax()).logical_not();
  }
  return at::stack({hash, odd_chunks});
}

std::vector<TensorState> states_of(std::span<const at::Tensor> tensors) {
  std::vector<TensorState> states(tensors.size());
  std::vector<size_t> on_device;
  std::vector<at::Tensor> numbers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    check_hashable(tensor);
    if (tensor.is_cpu()) {
      states[i] = state_on_host(tensor);
    } else {
      on_device.push_back(i);
      numbers.push_back(state_by_operations(tensor));
    }
  }
  if (numbers.empty()) return states;
  const at::Tensor here = at::stack(numbers).cpu();
  for (size_t i = 0; i < on_device.size(); ++i) states[on_device[i]] = state_from(here[static_cast<int64_t>(i)]);
  return states;
}

}  // namespace titan
