#include "titan/optimize/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <array>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu_kernels.h"
#include "titan/base/error.h"
#include "titan/gpu/cuda.h"
#include "titan/kernels/kernels.h"
#include "titan/ops/tensor_checks.h"
#include "titan/optimize/neighbours.h"

namespace titan {

at::Tensor local_squares(std::span<Parameter* const> parameters, const at::Device& device) {
  std::vector<at::Tensor> gradients;
  for (Parameter* parameter : parameters) {
    TITAN_CHECK(parameter->gradient_shard.defined(), parameter->name());
    gradients.push_back(parameter->gradient_shard);
  }
  return exact_squares(joined(std::move(gradients)), device);  // joining neighbours changes no bit of an exact sum
}

namespace {

/// The correctly rounded square root of IEEE 754. CUDA's is; ATen's vectorised CPU root is off by one ulp for one
/// number in a hundred.
at::Tensor exact_root(at::Tensor value) {
  if (!value.is_cpu()) return value.sqrt_();
  double& number = *value.mutable_data_ptr<double>();
  number = std::sqrt(number);
  return value;
}

}  // namespace

StepControl control_from(const at::Tensor& squares, double max_norm, const at::Tensor& loss) {
  TITAN_CHECK(is_number(loss, at::kDouble) && squares.defined() && loss.device() == squares.device(), summary_of(loss),
              summary_of(squares));
  StepControl control;
  control.norm = exact_root(exact_value_of(squares));
  const at::ScalarType factor_type = control.norm.is_cpu() ? at::kDouble : at::kFloat;
  control.clip = at::ones({}, control.norm.options().dtype(factor_type));
  if (max_norm > 0) {
    // The 1e-6 is that of torch.nn.utils.clip_grad_norm_: clipped gradients agree with PyTorch's.
    control.clip = (max_norm / (control.norm + 1e-6)).clamp_max_(1.0).to(factor_type);
  }
  control.skip = at::isfinite(control.norm + loss).logical_not_().to(at::kFloat);
  return control;
}

StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss) {
  return control_from(local_squares(parameters, loss.device()), max_norm, loss);
}

namespace {

bool is_bf16(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

constexpr int64_t kGrain = 1 << 15;  // elements: each part ends with a carry and a lock

template <class Value>
void add_on_cpu(const at::Tensor& tensor, int64_t* slots) {
  const auto* values = static_cast<const Value*>(tensor.const_data_ptr());
  std::mutex mutex;
  at::parallel_for(0, tensor.numel(), kGrain, [&](int64_t begin, int64_t end) {
    std::array<int64_t, kExactSlots> part{};
    cpu_add_squares(values + begin, end - begin, part.data());
    exact_carry(part.data());
    const std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < kExactSlots; ++i) slots[i] += part[i];
  });
  exact_carry(slots);
}

void add_on_cuda(const std::vector<at::Tensor>& tensors, const at::Tensor& slots) {
  const c10::DeviceGuard guard(slots.device());
  CUstream_st* const stream = cuda().current_stream(slots.get_device());
  for (const at::Tensor& tensor : tensors) {
    const KernelType type = is_bf16(tensor) ? KernelType::bf16 : KernelType::fp32;
    cuda().kernels().exact_squares(
        {tensor.const_data_ptr(), tensor.numel(), slots.mutable_data_ptr<int64_t>(), /*most_blocks=*/0, type}, stream);
  }
  cuda().kernels().exact_carry(slots.mutable_data_ptr<int64_t>(), stream);
}

at::Tensor value_on_cuda(const at::Tensor& slots) {
  const c10::DeviceGuard guard(slots.device());
  at::Tensor value = at::empty({}, slots.options().dtype(at::kDouble));
  cuda().kernels().exact_value(slots.const_data_ptr<int64_t>(), value.mutable_data_ptr<double>(),
                               cuda().current_stream(slots.get_device()));
  return value;
}

}  // namespace

at::Tensor exact_squares(const std::vector<at::Tensor>& tensors, const at::Device& device) {
  for (const at::Tensor& tensor : tensors) {
    TITAN_CHECK(tensor.defined() && (tensor.scalar_type() == at::kFloat || is_bf16(tensor)) && tensor.is_contiguous() &&
                    tensor.device() == device,
                summary_of(tensor), device.str());
  }
  at::Tensor slots = at::zeros({kExactSlots}, at::TensorOptions(at::kLong).device(device));
  if (device.is_cuda()) {
    add_on_cuda(tensors, slots);
  } else {
    auto* const sum = slots.mutable_data_ptr<int64_t>();
    for (const at::Tensor& tensor : tensors) {
      is_bf16(tensor) ? add_on_cpu<BFloat16Bits>(tensor, sum) : add_on_cpu<float>(tensor, sum);
    }
  }
  return slots;
}

at::Tensor exact_value_of(const at::Tensor& slots) {
  TITAN_CHECK(
      slots.defined() && slots.scalar_type() == at::kLong && slots.numel() == kExactSlots && slots.is_contiguous(),
      summary_of(slots), int{kExactSlots});
  if (slots.is_cuda()) return value_on_cuda(slots);
  return at::scalar_tensor(exact_value(slots.const_data_ptr<int64_t>()), at::kDouble);
}

}  // namespace titan
