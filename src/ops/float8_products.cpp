#include "titan/ops/float8_products.h"

#include <ATen/ATen.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <algorithm>
#include <atomic>

#include "matrix_product.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/linear.h"

namespace titan {
namespace {

constexpr int64_t kTile = 16;  // cuBLAS refuses float8 products of other dimensions than its multiples

bool by_tensor(const Float8Side& side) { return side.scale.value.dim() == 0; }

/// On a CPU with AMX int8, LibTorch passes products of two operands of one format to oneDNN. Without AMX fp16 oneDNN
/// has no kernel for them and runs its reference code, a thousand times slower.
bool takes_reference_code() {
  static const bool result = [] {
    const auto known = at::cpu::get_cpu_capabilities();
    const auto has = [&](const char* name) { return known.contains(name) && known.at(name).toBool(); };
    return has("amx_int8") && !has("amx_fp16");
  }();
  return result;
}

/// True if at::_scaled_mm supports these operands at full speed: on the CPU one scale per operand, on CUDA
/// dimensions that are multiples of kTile.
bool multiplied_in_float8(const Float8Side& left, const Float8Side& right) {
  if (left.rows.is_cpu()) {
    const bool same = left.rows.scalar_type() == right.rows.scalar_type();
    return by_tensor(left) && by_tensor(right) && !(same && takes_reference_code());
  }
  const bool tiles =
      left.rows.size(0) % kTile == 0 && left.rows.size(1) % kTile == 0 && right.rows.size(0) % kTile == 0;
  return tiles && left.rows.size(0) > 0;
}

/// Inverse scale of each row; a tensorwise scale is expanded.
at::Tensor row_inverses(const Float8Side& side) {
  const at::Tensor& inverse = side.scale.inverse;
  return by_tensor(side) ? inverse.expand({side.rows.size(0), 1}).contiguous() : inverse.contiguous();
}

/// target = left · rightᵀ, fp32 or rounded once from fp32 sums; one scale per operand.
void scaled_product_into(at::Tensor& target, const Float8Side& left, const Float8Side& right) {
  at::_scaled_mm_out(target, left.rows, right.rows.t(), left.scale.inverse, right.scale.inverse, {}, {},
                     target.scalar_type(), /*use_fast_accum=*/false);
}

at::Tensor scaled_product(const Float8Side& left, const Float8Side& right, at::ScalarType type, bool fast) {
  if (by_tensor(left) && by_tensor(right)) {
    return at::_scaled_mm(left.rows, right.rows.t(), left.scale.inverse, right.scale.inverse, {}, {}, type, fast);
  }
  // This hardware returns rowwise-scaled products only in bf16.
  return at::_scaled_mm(left.rows.contiguous(), right.rows.contiguous().t(), row_inverses(left),
                        row_inverses(right).t(), {}, {}, at::kBFloat16, fast)
      .to(type);
}

using Weights = LinearProducts::Weights;

bool any_in_float8(const Weights& weights) {
  return std::any_of(weights.begin(), weights.end(), [](const Parameter* weight) { return weight->in_float8(); });
}
bool all_in_float8(const Weights& weights) {
  return std::all_of(weights.begin(), weights.end(), [](const Parameter* weight) { return weight->in_float8(); });
}

class Float8Products : public LinearProducts {
 public:
  explicit Float8Products(Float8Options options)
      : options_(std::move(options)),
        dense_(options_.round_weight_gradient),
        tensorwise_(options_.recipe == Float8Recipe::tensorwise) {}

  Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                  UnitContext& context) const override {
    Operand operand{.data = input, .scale = scale, .type = input.scalar_type()};
    if (tensorwise_ && any_in_float8(weights) && !scale.defined())
      operand.scale = scales_of({input}, Float8Format::e4m3, context)[0];
    return operand;
  }

  std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                         UnitContext& context) const override {
    std::vector<Operand> operands(gradients.size());
    std::vector<at::Tensor> scaled;
    std::vector<size_t> places;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      operands[i] = {.data = gradients[i], .is_gradient = true, .type = gradients[i].scalar_type()};
      if (!tensorwise_ || !weights[i]->in_float8()) continue;
      scaled.push_back(gradients[i]);
      places.push_back(i);
    }
    if (scaled.empty()) return operands;
    const Float8Scales scales = scales_of(scaled, Float8Format::e5m2, context);
    for (size_t i = 0; i < places.size(); ++i) operands[places[i]].scale = scales[static_cast<int64_t>(i)];
    return operands;
  }

  at::Tensor message(const Operand& operand, const Weights& weights) const override {
    if (!keeps_float8(weights)) return operand.data;
    const at::Tensor rows =
        operand.quantised.defined()
            ? operand.quantised
            : options_.casts.cast(operand.data, operand.scale.value, format_of(operand), kRows).data;
    return rows.view(at::kByte);
  }

  Operand received(const at::Tensor& rows, const Operand& mine, const Weights& weights) const override {
    Operand operand{.scale = mine.scale, .is_gradient = mine.is_gradient, .type = mine.type};
    if (keeps_float8(weights)) {
      operand.quantised = rows.view(scalar_type(format_of(mine)));
    } else {
      operand.data = rows;
    }
    return operand;
  }

  Operand ready(Operand operand, const Weights& weights) const override {
    if (!any_in_float8(weights) || operand.quantised.defined()) return operand;
    if (!tensorwise_) operand.scale = own_scale(operand.data, Float8Extent::row);
    // A gradient is read by rows for the input's gradient and by columns for the weight's.
    const bool both = tensorwise_ && (operand.is_kept || (operand.is_gradient && wants_copies(operand.data)));
    const Float8Matrix cast =
        options_.casts.cast(operand.data, operand.scale.value, format_of(operand), both ? kBoth : kRows);
    operand.quantised = cast.data;
    operand.transposed = cast.transposed;
    if (keeps_float8(weights)) operand.data.reset();
    return operand;
  }

  at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const override {
    if (!weight.in_float8()) return dense_.forward(x, weight, columns);
    const bool keeps = options_.keeps_weights && tensorwise_ && weight.float8_scale.defined();
    return multiply({x.quantised, x.scale}, rows_of_weight(weight, keeps ? columns : nullptr), x.type, /*fast=*/true);
  }

  void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                      at::Tensor& dx) const override {
    if (!weight.in_float8()) return dense_.input_gradient(dy, weight, columns, dx);
    const Float8Side right = columns.defined() ? Float8Side{columns, weight.float8_scale} : columns_of_weight(weight);
    const at::Tensor share = multiply({dy.quantised, dy.scale}, right, dy.type, /*fast=*/false);
    dx = dx.defined() ? dx.add_(share) : share;
  }

  /// True if operands are sent and saved only in float8: one scale serves all ranks' rows and every weight reads
  /// float8.
  bool keeps_float8(const Weights& weights) const override { return tensorwise_ && all_in_float8(weights); }

  Operand for_weight_gradients(const Operand& x, const Weights& weights) const override {
    Operand operand{.scale = x.scale, .type = x.type};
    if (dense_gradients() || !all_in_float8(weights)) {
      operand.data = dense_.for_weight_gradients(x, weights).data;
    }
    if (any_in_float8(weights) && !dense_gradients()) {
      Float8Side columns = columns_of(x);
      operand.transposed = std::move(columns.rows);
      operand.scale = std::move(columns.scale);
    }
    return operand;
  }

  void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const override {
    if (!weight.in_float8() || dense_gradients()) return dense_.weight_gradient(dy, x, weight);
    const Float8Side left = columns_of(dy), right{x.transposed, x.scale};
    at::Tensor gradient = weight.gradient();
    if (goes_straight_into(gradient, weight.gradient_written(), left, right)) {
      scaled_product_into(gradient, left, right);
      weight.mark_gradient_written();
    } else {
      // A GPU rounds its fp32 sums to the dtype of the gradient, a CPU rounds an fp32 product.
      const bool rounds = options_.round_weight_gradient || rounds_to(gradient);
      const at::ScalarType type = rounds ? dy.type : at::kFloat;
      weight.add_to_gradient(multiply(left, right, type, /*fast=*/false));
    }
  }

 private:
  static constexpr Float8Sides kRows = Float8Sides::data;
  static constexpr Float8Sides kColumns = Float8Sides::transposed;
  static constexpr Float8Sides kBoth = Float8Sides::both;

  bool dense_gradients() const { return options_.recipe == Float8Recipe::rowwise_with_gw_hp; }
  /// GPU float8 products need both operands contiguous along the contracted dimension; emulation accepts any strides.
  bool wants_copies(const at::Tensor& like) const { return like.is_cuda() && !options_.emulate; }

  static bool rounds_to(const at::Tensor& gradient) {
    return gradient.is_cuda() && gradient.scalar_type() == at::kBFloat16;
  }

  /// The first gradient of a step can be written to its destination directly: saves 12 bytes per weight.
  bool goes_straight_into(const at::Tensor& gradient, bool written, const Float8Side& left,
                          const Float8Side& right) const {
    const bool is_wide = !options_.round_weight_gradient && gradient.scalar_type() == at::kFloat;
    return !written && !options_.emulate && (is_wide || rounds_to(gradient)) && gradient.is_contiguous() &&
           by_tensor(left) && by_tensor(right) && multiplied_in_float8(left, right);
  }

  Float8Format format_of(const Operand& operand) const {
    return tensorwise_ && operand.is_gradient ? Float8Format::e5m2 : Float8Format::e4m3;
  }

  /// One scale per tensor, agreed among the ranks that share matrices. The kernel that wrote a tensor may have computed
  /// its amax.
  Float8Scales scales_of(const std::vector<at::Tensor>& tensors, Float8Format format, UnitContext& context) const {
    std::vector<at::Tensor> amaxes, unknown;
    for (const at::Tensor& tensor : tensors) {
      amaxes.push_back(context.scales.find(tensor));
      if (!amaxes.back().defined()) unknown.push_back(tensor);
    }
    if (!unknown.empty()) {
      const auto count = static_cast<int64_t>(unknown.size());
      const at::Tensor zeros = context.scales.wanted ? context.slots.take(count, unknown[0]) : at::Tensor();
      const at::Tensor found = options_.casts.amaxes(unknown, zeros);
      int64_t next = 0;
      for (at::Tensor& amax : amaxes) {
        if (!amax.defined()) amax = found[next++];
      }
    }
    if (options_.tensor) {
      const at::Tensor largest = at::stack(amaxes);
      options_.tensor->all_reduce({largest}, Reduction::max)->wait();
      amaxes = largest.unbind();
    }
    return options_.casts.scales(amaxes, format, /*power_of_two=*/false);
  }

  /// The scale of `matrix` per extent, computed locally; a power of two in the rowwise recipes.
  Float8Scale own_scale(const at::Tensor& matrix, Float8Extent extent) const {
    return options_.casts.scales({options_.casts.amax(matrix, extent)}, Float8Format::e4m3,
                                 /*power_of_two=*/!tensorwise_)[0];
  }

  at::Tensor transposed(const at::Tensor& rows) const { return wants_copies(rows) ? rows.t().contiguous() : rows.t(); }

  /// The operand transposed, for the weight-gradient product, which contracts over rows.
  Float8Side columns_of(const Operand& operand) const {
    if (operand.transposed.defined()) return {operand.transposed, operand.scale};
    if (!tensorwise_) return columns_by_column(operand.data);
    if (operand.quantised.defined()) return {transposed(operand.quantised), operand.scale};
    return {options_.casts.cast(operand.data, operand.scale.value, format_of(operand), kColumns).transposed,
            operand.scale};
  }

  /// The same with one scale per column.
  Float8Side columns_by_column(const at::Tensor& matrix) const {
    const Float8Scale scale = own_scale(matrix, Float8Extent::column);
    return {options_.casts.cast(matrix, scale.value, Float8Format::e4m3, kColumns).transposed, scale.t()};
  }

  Float8Scale scale_of(const Parameter& weight) const {
    if (weight.float8_scale.defined()) return weight.float8_scale;
    return own_scale(weight.weight(), Float8Extent::tensor);
  }

  /// `columns` receives the weight's transposed copy, unless it was all-gathered in float8; null: not wanted.
  Float8Side rows_of_weight(const Parameter& weight, at::Tensor* columns) const {
    const at::Tensor& matrix = weight.weight();
    if (matrix.scalar_type() == at::kFloat8_e4m3fn) return {matrix, weight.float8_scale};
    const Float8Scale scale = tensorwise_ ? scale_of(weight) : own_scale(matrix, Float8Extent::row);
    const Float8Matrix cast = options_.casts.cast(matrix, scale.value, Float8Format::e4m3, columns ? kBoth : kRows);
    if (columns) *columns = cast.transposed;
    return {cast.data, scale};
  }

  Float8Side columns_of_weight(const Parameter& weight) const {
    const at::Tensor& matrix = weight.weight();
    if (matrix.scalar_type() == at::kFloat8_e4m3fn) return {transposed(matrix), weight.float8_scale};
    if (options_.recipe == Float8Recipe::rowwise) return columns_by_column(matrix);
    const Float8Scale scale = tensorwise_ ? scale_of(weight) : own_scale(matrix, Float8Extent::tensor);
    return {options_.casts.cast(matrix, scale.value, Float8Format::e4m3, kColumns).transposed, scale};
  }

  at::Tensor multiply(const Float8Side& left, const Float8Side& right, at::ScalarType type, bool fast) const {
    bool emulated = false;
    at::Tensor product = float8_product(left, right, type, fast, options_.emulate, &emulated);
    // The CPU has no rowwise products; only report emulation on a GPU.
    if (emulated && left.rows.is_cuda() && options_.warn && !warned_.exchange(true)) {
      options_.warn(
          fmt::format("a float8 product of [{}, {}] by [{}, {}] is emulated: this GPU multiplies multiples of "
                      "{} only",
                      left.rows.size(0), left.rows.size(1), right.rows.size(1), right.rows.size(0), kTile));
    }
    return product;
  }

  Float8Options options_;
  DenseProducts dense_;
  bool tensorwise_;
  mutable std::atomic<bool> warned_ = false;
};

}  // namespace

at::Tensor float8_product(const Float8Side& left, const Float8Side& right, at::ScalarType type, bool fast, bool emulate,
                          bool* emulated) {
  check_float8(left.rows, left.scale.value, left.scale.inverse);
  check_float8(right.rows, right.scale.value, right.scale.inverse);
  TITAN_CHECK(left.rows.size(1) == right.rows.size(1) && left.rows.device() == right.rows.device(),
              summary_of(left.rows), summary_of(right.rows));
  if (!emulate && multiplied_in_float8(left, right)) return scaled_product(left, right, type, fast);
  if (!emulate && emulated) *emulated = true;
  const at::Tensor x = left.rows.to(at::kFloat).div_(left.scale.value);
  const at::Tensor w = right.rows.to(at::kFloat).div_(right.scale.value);
  return product_with_transposed(x, w).to(type);
}

std::shared_ptr<const LinearProducts> make_float8_products(Float8Options options) {
  return std::make_shared<Float8Products>(std::move(options));
}

namespace {

KernelExtent kernel_extent(Float8Extent extent) {
  if (extent == Float8Extent::tensor) return KernelExtent::matrix;
  return extent == Float8Extent::row ? KernelExtent::row : KernelExtent::column;
}

/// The extent of `scale`, from its shape [], [rows, 1] or [1, columns].
std::optional<KernelExtent> extent_of(const at::Tensor& scale, const at::Tensor& matrix) {
  if (scale.scalar_type() != at::kFloat || !scale.is_contiguous()) return std::nullopt;
  if (scale.numel() == 1) return KernelExtent::matrix;
  if (scale.dim() != 2) return std::nullopt;
  if (scale.size(0) == matrix.size(0) && scale.size(1) == 1) return KernelExtent::row;
  if (scale.size(1) == matrix.size(1) && scale.size(0) == 1) return KernelExtent::column;
  return std::nullopt;
}

void raise(const FusedKernels& kernels, const at::Tensor& matrix, Float8Extent extent, float* largest) {
  // As unsigned numbers the bits of non-negative floats compare like the floats: atomicMax needs whole numbers.
  kernels.table().amax({kernel_type(matrix), matrix.size(0), matrix.size(1), kernel_extent(extent),
                        matrix.const_data_ptr(), reinterpret_cast<uint32_t*>(largest)},
                       current_stream(matrix));
}

std::optional<at::Tensor> fused_amax(const FusedKernels& kernels, const at::Tensor& matrix, Float8Extent extent) {
  if (matrix.dim() != 2 || !kernels.fit({&matrix})) return std::nullopt;
  const at::TensorOptions options = matrix.options().dtype(at::kFloat);
  at::Tensor largest = extent == Float8Extent::tensor ? at::zeros({}, options)
                       : extent == Float8Extent::row  ? at::zeros({matrix.size(0), 1}, options)
                                                      : at::zeros({1, matrix.size(1)}, options);
  raise(kernels, matrix, extent, largest.mutable_data_ptr<float>());
  return largest;
}

std::optional<at::Tensor> fused_amaxes(const FusedKernels& kernels, const std::vector<at::Tensor>& matrices,
                                       const at::Tensor& zeros) {
  const bool fit = std::all_of(matrices.begin(), matrices.end(),
                               [&](const at::Tensor& matrix) { return matrix.dim() == 2 && kernels.fit({&matrix}); });
  if (matrices.empty() || !fit) return std::nullopt;
  const auto count = static_cast<int64_t>(matrices.size());
  at::Tensor largest = zeros.defined() ? zeros : at::zeros({count}, matrices[0].options().dtype(at::kFloat));
  for (int64_t i = 0; i < count; ++i) {
    raise(kernels, matrices[static_cast<size_t>(i)], Float8Extent::tensor, largest.mutable_data_ptr<float>() + i);
  }
  return largest;
}

KernelFloat8 kernel_format(Float8Format format) {
  return format == Float8Format::e4m3 ? KernelFloat8::e4m3 : KernelFloat8::e5m2;
}

std::optional<Float8Scales> fused_scales(const FusedKernels& kernels, const std::vector<at::Tensor>& largest,
                                         Float8Format format, bool power_of_two) {
  const bool fit = std::all_of(largest.begin(), largest.end(), [&](const at::Tensor& amaxes) {
    return amaxes.scalar_type() == at::kFloat && kernels.fit({&amaxes});
  });
  if (largest.empty() || !fit) return std::nullopt;
  const int64_t each = largest[0].numel();
  const auto arrays = static_cast<int64_t>(largest.size());
  std::vector<int64_t> shape{2, arrays};
  shape.insert(shape.end(), largest[0].sizes().begin(), largest[0].sizes().end());
  Float8Scales scales{at::empty(shape, largest[0].options())};
  auto* values = scales.block.mutable_data_ptr<float>();
  for (int64_t first = 0; first < arrays; first += kMostAmaxArrays) {
    ScalesOfAmaxes a;
    a.format = kernel_format(format);
    a.power_of_two = power_of_two;
    a.arrays = static_cast<int>(std::min<int64_t>(arrays - first, kMostAmaxArrays));
    a.each = each;
    for (int i = 0; i < a.arrays; ++i) a.largest[i] = largest[static_cast<size_t>(first + i)].const_data_ptr<float>();
    a.values = values + first * each;
    a.inverses = values + (arrays + first) * each;
    kernels.table().scales_of_amaxes(a, current_stream(largest[0]));
  }
  return scales;
}

std::optional<Float8Matrix> fused_cast(const FusedKernels& kernels, const at::Tensor& matrix, const at::Tensor& scale,
                                       Float8Format format, Float8Sides sides) {
  if (matrix.dim() != 2 || !kernels.fit({&matrix})) return std::nullopt;
  const std::optional<KernelExtent> extent = extent_of(scale, matrix);
  if (!extent) return std::nullopt;
  Float8Matrix result;
  const at::TensorOptions options = matrix.options().dtype(scalar_type(format));
  Float8Cast a;
  a.type = kernel_type(matrix);
  a.format = kernel_format(format);
  a.rows = matrix.size(0);
  a.columns = matrix.size(1);
  a.matrix = matrix.const_data_ptr();
  a.extent = *extent;
  a.scale = scale.const_data_ptr<float>();
  if (sides != Float8Sides::transposed) {
    result.data = at::empty({a.rows, a.columns}, options);
    a.data = static_cast<uint8_t*>(result.data.mutable_data_ptr());
  }
  if (sides != Float8Sides::data) {
    result.transposed = at::empty({a.columns, a.rows}, options);
    a.transposed = static_cast<uint8_t*>(result.transposed.mutable_data_ptr());
  }
  if (!supported(a)) {
    kernels.fall_back(fmt::format("a float8 cast of [{}, {}]", a.rows, a.columns));
    return std::nullopt;
  }
  kernels.table().float8_cast(a, current_stream(matrix));
  return result;
}

}  // namespace

Float8Casts make_fused_float8_casts(std::shared_ptr<const FusedKernels> kernels) {
  const Float8Casts plain = make_aten_float8_casts();
  return {[kernels, plain](const at::Tensor& matrix, Float8Extent extent) {
            const std::optional<at::Tensor> largest = fused_amax(*kernels, matrix, extent);
            return largest ? *largest : plain.amax(matrix, extent);
          },
          [kernels, plain](const std::vector<at::Tensor>& matrices, const at::Tensor& zeros) {
            const std::optional<at::Tensor> largest = fused_amaxes(*kernels, matrices, zeros);
            return largest ? *largest : plain.amaxes(matrices, zeros);
          },
          [kernels, plain](const std::vector<at::Tensor>& largest, Float8Format format, bool power_of_two) {
            const std::optional<Float8Scales> scales = fused_scales(*kernels, largest, format, power_of_two);
            return scales ? *scales : plain.scales(largest, format, power_of_two);
          },
          [kernels, plain](const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides) {
            const std::optional<Float8Matrix> result = fused_cast(*kernels, matrix, scale, format, sides);
            return result ? *result : plain.cast(matrix, scale, format, sides);
          }};
}

}  // namespace titan
