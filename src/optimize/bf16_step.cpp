// Steps of parameters with bf16 masters or moments: one parameter at a time, because each element's rounding depends on
// its index in the whole tensor.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cpu_kernels.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/gpu/cuda.h"
#include "titan/kernels/kernels.h"
#include "titan/ops/tensor_checks.h"
#include "titan/optimize/adam.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/optimize/rounded_store.h"

namespace titan {
namespace {

constexpr uint64_t kRoundingStream = 0x526F756E64696E67;  // "Rounding": no other stream of the seed has this number

RoundingKey rounding_key(uint64_t seed, int64_t step, const std::string& name) {
  const PhiloxBlock block = philox_at(seed, kRoundingStream, static_cast<uint64_t>(step));
  return {uint64_t{block[1]} << 32 | block[0], name_key(name)};
}

/// The position of this rank's shard in the whole parameter.
RoundingPlace place_of(const Parameter& parameter) {
  const Box& box = parameter.shard_box();
  const std::vector<int64_t>& shape = parameter.spec().shape;
  TITAN_CHECK(shape.size() <= 2, parameter.name(), shape.size());
  TITAN_CHECK(box.numel() == parameter.master.numel(), parameter.name());
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  const int64_t first = shape.empty() ? 0 : box.offset[0] * columns + (shape.size() == 2 ? box.offset[1] : 0);
  const int64_t run = shape.size() == 2 && box.extent[1] < columns ? box.extent[1] : parameter.master.numel();
  return {first, std::max<int64_t>(1, run), columns};
}

// With fewer, starting a thread takes longer than their arithmetic. Rounding depends on an element's index alone, so
// the number does not change a bit.
constexpr int64_t kElementsOfAThread = 1 << 14;

}  // namespace

void AdamOptimizer::step_bf16(const State& state, int64_t step, double lr, const StepControl& control) const {
  Parameter& parameter = *state.parameter;
  const at::Tensor& master = parameter.master;
  const at::Tensor& gradient = parameter.gradient_shard;
  TITAN_CHECK(master.is_contiguous() && gradient.is_contiguous(), parameter.name());
  const AdamConstants constants = constants_of(state, lr);
  const Rounding rounding{rounding_key(rounding_seed_, step, parameter.name()), place_of(parameter)};
  const bool bf16_weight = master.scalar_type() == at::kBFloat16;
  const bool bf16_moments = state.first.scalar_type() == at::kBFloat16;
  const bool bf16_gradient = gradient.scalar_type() == at::kBFloat16;
  parameter.compute_copy_written = writes_copy(parameter);  // also for an empty shard, which has no memory
  void* const copy = parameter.compute_copy_written ? parameter.compute_copy.mutable_data_ptr() : nullptr;
  if (master.is_cuda()) {
    uint32_t* const amax = amax_slot(parameter);
    parameter.amax_written = amax != nullptr;
    const auto type = [](bool bf16) { return bf16 ? KernelType::bf16 : KernelType::fp32; };
    cuda().kernels().bf16_adam(
        {master.mutable_data_ptr(), gradient.const_data_ptr(), state.first.mutable_data_ptr(),
         state.second.mutable_data_ptr(), master.numel(), type(bf16_weight), type(bf16_moments), type(bf16_gradient),
         rounding.key, rounding.place, constants, control.clip.const_data_ptr<float>(),
         control.skip.const_data_ptr<float>(), copy, state.corrections.const_data_ptr<float>(), amax},
        cuda().current_stream(master.get_device()));
    return;
  }
  const Bf16AdamMemory memory{master.mutable_data_ptr(),
                              gradient.const_data_ptr(),
                              state.first.mutable_data_ptr(),
                              state.second.mutable_data_ptr(),
                              static_cast<BFloat16Bits*>(copy),
                              bf16_weight,
                              bf16_moments,
                              bf16_gradient};
  const double clip = look_at(control.clip);
  at::parallel_for(0, master.numel(), kElementsOfAThread, [&](int64_t begin, int64_t end) {
    cpu_bf16_adam(memory, begin, end - begin, rounding, constants, clip);
  });
}

void store_rounded(const RoundedNumber& rounded, const at::Tensor& fresh, at::Tensor kept, const StepControl& control) {
  const auto& [parameter, seed, step, number] = rounded;
  TITAN_CHECK(fresh.defined() && kept.defined() && fresh.scalar_type() == at::kFloat && fresh.sizes() == kept.sizes() &&
                  fresh.device() == kept.device(),
              parameter.name(), summary_of(fresh), summary_of(kept));
  if (kept.scalar_type() == at::kFloat) {  // without a host sync on the skip flag
    kept.copy_(at::where(control.skip.to(at::kBool), kept, fresh));
    return;
  }
  const Rounding rounding{rounding_key(seed, step, parameter.name()), place_of(parameter)};
  const at::Tensor values = fresh.contiguous();
  if (kept.is_cuda()) {
    cuda().kernels().round_stochastically({values.const_data_ptr<float>(), kept.mutable_data_ptr(), kept.numel(),
                                           number, rounding.key, rounding.place, control.skip.const_data_ptr<float>()},
                                          cuda().current_stream(kept.get_device()));
    return;
  }
  if (look_at(control.skip) != 0) return;
  at::parallel_for(0, kept.numel(), kElementsOfAThread, [&](int64_t begin, int64_t end) {
    cpu_round(values.const_data_ptr<float>(), static_cast<BFloat16Bits*>(kept.mutable_data_ptr()), begin, end - begin,
              rounding, rounded.number);
  });
}

}  // namespace titan
