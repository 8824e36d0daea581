#include "fused_elementwise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "titan/ops/column_gradients.h"
#include "titan/ops/fused_kernels.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

void* writable(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }
const void* readable(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

/// An amax slot for this tensor if a float8 product will need it; otherwise undefined.
at::Tensor amax_slot(const at::Tensor& like, UnitContext& context) {
  return context.scales.wanted ? context.slots.take(1, like).squeeze(0) : at::Tensor();
}

uint32_t* slot_bits(const at::Tensor& slot) { return static_cast<uint32_t*>(writable(slot)); }

/// The device scale as fp32 for kernels; undefined if the scale is a host number.
at::Tensor narrow_scale(const LossScale& scale) { return scale.at.defined() ? scale.at.to(at::kFloat) : at::Tensor(); }

std::string shown(const char* what, const at::Tensor& tensor) {
  return fmt::format("{} of {} numbers in {}", what, tensor.size(-1), c10::toString(tensor.scalar_type()));
}

}  // namespace

std::optional<FusedRmsNorm> fused_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                           double epsilon, bool round_once, UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  if (!kernels || !kernels->fit({&x, &delta, &weight})) return std::nullopt;
  std::vector<int64_t> statistics = x.sizes().vec();
  statistics.back() = 1;
  FusedRmsNorm result{delta.defined() ? at::empty_like(x) : x,
                      {at::empty_like(x), at::empty(statistics, x.options().dtype(at::kFloat))}};
  const at::Tensor largest = amax_slot(x, context);
  RmsNormForward a;
  a.type = kernel_type(x);
  a.rows = x.numel() / x.size(-1);
  a.columns = x.size(-1);
  a.epsilon = static_cast<float>(epsilon);
  a.round_once = round_once;
  a.x = x.const_data_ptr();
  a.delta = readable(delta);
  a.weight = weight.const_data_ptr();
  a.sum = delta.defined() ? writable(result.sum) : nullptr;
  a.normed = writable(result.norm.normed);
  a.scale = result.norm.scale.mutable_data_ptr<float>();
  a.largest_normed = slot_bits(largest);
  if (!supported(a)) {
    kernels->fall_back(shown("an RMS norm", x));
    return std::nullopt;
  }
  kernels->table().rms_norm_forward(a, current_stream(x));
  if (largest.defined()) context.scales.offer(result.norm.normed, largest);
  return result;
}

std::optional<at::Tensor> fused_rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual,
                                                  const at::Tensor& x, const at::Tensor& scale, Parameter& weight,
                                                  UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  const at::Tensor dy_rows = dy.contiguous();
  const at::Tensor past = d_residual.defined() ? d_residual.contiguous() : d_residual;
  if (!kernels || !kernels->fit({&x, &dy_rows, &past, &weight.weight()})) return std::nullopt;
  at::Tensor dx = at::empty_like(x);
  const at::Tensor largest = amax_slot(x, context);
  RmsNormBackward a;
  a.type = kernel_type(x);
  a.rows = x.numel() / x.size(-1);
  a.columns = x.size(-1);
  a.d_normed = dy_rows.const_data_ptr();
  a.d_residual = readable(past);
  a.x = x.const_data_ptr();
  a.weight = weight.weight().const_data_ptr();
  a.scale = scale.const_data_ptr<float>();
  a.dx = writable(dx);
  a.largest_dx = slot_bits(largest);
  at::Tensor partials, d_weight;
  if (weight.trainable()) {
    d_weight = weight.gradient();
    const bool is_narrow = d_weight.scalar_type() == at::kBFloat16;
    if ((!is_narrow && d_weight.scalar_type() != at::kFloat) || !d_weight.is_contiguous()) return std::nullopt;
    partials = at::empty({rms_norm_partials(a.rows, a.columns), a.columns}, x.options().dtype(at::kFloat));
    a.partials = partials.mutable_data_ptr<float>();
    a.d_weight = d_weight.mutable_data_ptr();
    a.d_weight_type = kernel_type(d_weight);
    a.accumulate = weight.gradient_written();
  }
  if (!supported(a)) {
    kernels->fall_back(shown("an RMS norm", x));
    return std::nullopt;
  }
  kernels->table().rms_norm_backward(a, current_stream(x));
  if (d_weight.defined()) weight.mark_gradient_written();
  if (largest.defined()) context.scales.offer(dx, largest);
  return dx;
}

bool fused_rotate(const at::Tensor& query, const at::Tensor& key, at::Tensor& turned_query, at::Tensor& turned_key,
                  const at::Tensor& table, const at::Tensor& positions, bool inverse, UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  const at::Tensor& any = query.defined() ? query : key;
  if (!kernels || !any.defined()) return false;
  const bool fits = query.defined() ? kernels->rows_fit({&query, &key, &turned_query, &turned_key}, 2)
                                    : kernels->rows_fit({&key, &turned_key}, 2);
  if (!fits || table.scalar_type() != at::kComplexFloat || !table.is_contiguous() ||
      (positions.defined() && !positions.is_contiguous())) {
    return false;
  }
  RotaryTurn a;
  a.type = kernel_type(any);
  a.tokens = any.size(0) * any.size(1);
  a.length = any.size(1);
  a.head_dim = any.size(3);
  a.query_heads = query.defined() ? query.size(2) : 0;
  a.key_heads = key.defined() ? key.size(2) : 0;
  a.query = readable(query);
  a.key = readable(key);
  a.turned_query = writable(turned_query);
  a.turned_key = writable(turned_key);
  const auto stride_of = [](const at::Tensor& heads) { return heads.defined() ? strided_rows(heads, 2)->stride : 0; };
  a.query_stride = stride_of(query);
  a.key_stride = stride_of(key);
  a.turned_query_stride = stride_of(turned_query);
  a.turned_key_stride = stride_of(turned_key);
  a.table = static_cast<const float*>(table.const_data_ptr());
  a.positions = static_cast<const int64_t*>(readable(positions));
  a.position_rows = positions.defined() ? positions.size(0) : 1;
  a.inverse = inverse;
  auto slot_for = [&](const at::Tensor& turned) {
    return inverse && turned.defined() ? amax_slot(turned, context) : at::Tensor();
  };
  const at::Tensor largest_query = slot_for(turned_query), largest_key = slot_for(turned_key);
  a.largest_query = slot_bits(largest_query);
  a.largest_key = slot_bits(largest_key);
  if (!supported(a)) return kernels->fall_back(shown("a rotation of heads", any));
  kernels->table().rotate(a, current_stream(any));
  if (largest_query.defined()) context.scales.offer(turned_query, largest_query);
  if (largest_key.defined()) context.scales.offer(turned_key, largest_key);
  return true;
}

std::optional<at::Tensor> fused_swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  if (!kernels || !kernels->rows_fit({&gate, &up}, 1)) return std::nullopt;
  const StridedRows rows = *strided_rows(gate, 1);
  if (strided_rows(up, 1)->stride != rows.stride) return std::nullopt;
  at::Tensor result = at::empty(gate.sizes(), gate.options());
  const at::Tensor largest = amax_slot(gate, context);
  const SwigluForward a{kernel_type(gate),     rows.rows,           rows.width,       rows.stride,
                        gate.const_data_ptr(), up.const_data_ptr(), writable(result), slot_bits(largest)};
  if (!supported(a)) {
    kernels->fall_back(shown("SwiGLU", gate));
    return std::nullopt;
  }
  kernels->table().swiglu_forward(a, current_stream(gate));
  if (largest.defined()) context.scales.offer(result, largest);
  return result;
}

bool fused_swiglu_backward(const SwigluGradients& result, const at::Tensor& dy, const at::Tensor& gate,
                           const at::Tensor& up, UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  const at::Tensor dy_rows = dy.contiguous();
  if (!kernels || !kernels->fit({&dy_rows}) || !kernels->rows_fit({&dy_rows, &gate, &up, &result.gate, &result.up}, 1))
    return false;
  const StridedRows rows = *strided_rows(gate, 1), gradients = *strided_rows(result.gate, 1);
  if (strided_rows(up, 1)->stride != rows.stride || strided_rows(result.up, 1)->stride != gradients.stride)
    return false;
  const at::Tensor largest_gate = amax_slot(gate, context);
  const at::Tensor largest_up = amax_slot(gate, context);
  const SwigluBackward a{kernel_type(gate),
                         rows.rows,
                         rows.width,
                         rows.stride,
                         gradients.stride,
                         dy_rows.const_data_ptr(),
                         gate.const_data_ptr(),
                         up.const_data_ptr(),
                         writable(result.gate),
                         writable(result.up),
                         slot_bits(largest_gate),
                         slot_bits(largest_up)};
  if (!supported(a)) return kernels->fall_back(shown("SwiGLU", gate));
  kernels->table().swiglu_backward(a, current_stream(gate));
  if (largest_gate.defined()) {
    context.scales.offer(result.gate, largest_gate);
    context.scales.offer(result.up, largest_up);
  }
  return true;
}

bool fused_embedding_gradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, int64_t first,
                              const UnitContext& context) {
  const FusedKernels* kernels = context.kernels;
  const at::Tensor rows = dy.contiguous();
  if (!kernels || !kernels->fit({&rows}) || gradient.scalar_type() != at::kFloat || !gradient.is_contiguous()) {
    return false;
  }
  const auto [token_ids, order] = tokens.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  kernels->table().embedding_gradient(
      {kernel_type(rows), tokens.numel(), rows.size(1), first, gradient.size(0), token_ids.const_data_ptr<int64_t>(),
       order.const_data_ptr<int64_t>(), rows.const_data_ptr(), gradient.mutable_data_ptr<float>()},
      current_stream(rows));
  return true;
}

std::optional<RowLosses> fused_row_losses(const at::Tensor& logits, const at::Tensor& labels, const LossScale& scale,
                                          bool want_gradient, const FusedKernels* kernels) {
  if (!kernels || !kernels->fit({&logits}) || !labels.is_contiguous()) return std::nullopt;
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  CrossEntropyRows a;
  a.type = kernel_type(logits);
  a.rows = logits.size(0);
  a.vocab_size = logits.size(1);
  a.logits = writable(logits);
  a.labels = labels.const_data_ptr<int64_t>();
  a.ignored = kIgnoredLabel;
  const at::Tensor scale_at = narrow_scale(scale);
  a.scale = static_cast<float>(scale.value);
  a.scale_at = static_cast<const float*>(readable(scale_at));
  a.gradient = want_gradient;
  a.losses = losses.mutable_data_ptr<float>();
  kernels->table().cross_entropy(a, current_stream(logits));
  return RowLosses{losses.sum(at::kDouble), want_gradient ? logits : at::Tensor()};
}

std::optional<RowLosses> fused_parallel_row_losses(const at::Tensor& logits, const at::Tensor& labels,
                                                   const LossScale& scale, bool want_gradient,
                                                   const Vocabulary& vocabulary, const FusedKernels* kernels) {
  // All ranks must communicate alike, so a rank with an empty vocabulary shard takes the same path.
  if (!kernels || !kernels->fit({&logits}, /*may_be_empty=*/true) || !labels.is_contiguous()) return std::nullopt;
  const int64_t rows = logits.size(0);
  const at::TensorOptions options = logits.options().dtype(at::kFloat);
  at::Tensor own_largest = at::empty({rows}, options);
  at::Tensor packed = at::empty({2, rows}, options);  // Σ exp, and the label's logit: one all-reduce for both
  const KernelType type = kernel_type(logits);
  const auto* label = labels.const_data_ptr<int64_t>();
  CUstream_st* stream = current_stream(logits);
  kernels->table().vocabulary_sums(
      {type, rows, logits.size(1), vocabulary.first, logits.const_data_ptr(), label,
       own_largest.mutable_data_ptr<float>(), packed[0].mutable_data_ptr<float>(), packed[1].mutable_data_ptr<float>()},
      stream);
  at::Tensor largest = own_largest.clone();
  vocabulary.communicator->all_reduce({largest}, Reduction::max)->wait();
  packed[0].mul_((own_largest - largest).exp_());
  vocabulary.communicator->all_reduce({packed})->wait();
  const at::Tensor losses = masked_losses(packed[0].log() + (largest - packed[1]), labels, vocabulary.size);
  RowLosses result{losses.sum(at::kDouble), {}};
  if (!want_gradient) return result;
  const at::Tensor scale_at = narrow_scale(scale);
  kernels->table().vocabulary_gradient(
      {type, rows, logits.size(1), vocabulary.first, writable(logits), label, kIgnoredLabel,
       static_cast<float>(scale.value), static_cast<const float*>(readable(scale_at)), largest.const_data_ptr<float>(),
       packed.const_data_ptr<float>()},
      stream);
  result.gradient = logits;
  return result;
}

}  // namespace titan
