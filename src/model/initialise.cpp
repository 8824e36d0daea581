#include "titan/model/initialise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/gpu/cuda.h"
#include "titan/ops/fused_kernels.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

NormalNumbers numbers_of(const Initialiser& initialiser, uint64_t seed, uint64_t name_key) {
  return {seed,
          name_key,
          initialiser.standard_deviation,
          initialiser.kind == Initialiser::Kind::truncated_normal,
          initialiser.lower,
          initialiser.upper};
}

/// The kernels of the tensor's device; null: the host computes the values.
const Kernels* kernels_for(const at::Tensor& tensor) { return tensor.is_cuda() ? &cuda().kernels() : nullptr; }

void draw_on_host(at::Tensor& master, const NormalNumbers& numbers, const RoundingPlace& place) {
  at::Tensor values = at::empty(master.sizes(), at::TensorOptions(at::kFloat));
  float* data = values.mutable_data_ptr<float>();
  // An element takes a logarithm, a root and a cosine in fp64: few of them are worth a thread.
  at::parallel_for(0, values.numel(), 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = static_cast<float>(normal_number(numbers, place.index(i)));
  });
  master.copy_(values);
}

}  // namespace

double initial_value(const Initialiser& initialiser, uint64_t seed, uint64_t name_key, int64_t index) {
  if (initialiser.kind == Initialiser::Kind::ones) return 1.0;
  if (initialiser.kind == Initialiser::Kind::zeros) return 0.0;
  return normal_number(numbers_of(initialiser, seed, name_key), index);
}

void initialise(Parameter& parameter, const Box& box, uint64_t seed, const Kernels* kernels) {
  const at::Tensor& master = parameter.master;
  TITAN_CHECK(master.defined() && (master.scalar_type() == at::kFloat || master.scalar_type() == at::kBFloat16) &&
                  master.sizes() == at::IntArrayRef(box.extent),
              parameter.name(), summary_of(master), box.extent);
  const Initialiser& initialiser = parameter.spec().initialiser;
  if (initialiser.kind == Initialiser::Kind::ones || initialiser.kind == Initialiser::Kind::zeros) {
    parameter.master.fill_(initial_value(initialiser, seed, 0, 0));
    return;
  }
  TITAN_CHECK(box.extent.size() == 2 && parameter.spec().shape.size() == 2, parameter.name(), box.extent.size());
  if (box.numel() == 0) return;
  const int64_t columns = parameter.spec().shape[1];
  const RoundingPlace place{box.offset[0] * columns + box.offset[1], box.extent[1], columns};
  const NormalNumbers numbers = numbers_of(initialiser, seed, name_key(parameter.name()));
  if (!kernels) kernels = kernels_for(parameter.master);
  if (!kernels) return draw_on_host(parameter.master, numbers, place);
  TITAN_CHECK(parameter.master.is_contiguous(), parameter.name());
  kernels->normal_fill(
      {kernel_type(parameter.master), parameter.master.numel(), numbers, place, parameter.master.mutable_data_ptr()},
      current_stream(parameter.master));
}

}  // namespace titan
