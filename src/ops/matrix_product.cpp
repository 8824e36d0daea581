#include "matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "cpu_products.h"
#include "product_check.h"
#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

// For fewer summed rows the product is bound by writing its result, and BLAS writes it in place.
constexpr int64_t kRowsWorthACopy = 256;

/// Two matrices whose dimensions `left_inner` and `right_inner` are contracted.
void check_operands(const at::Tensor& left, int64_t left_inner, const at::Tensor& right, int64_t right_inner) {
  TITAN_CHECK(
      same_kind(left, right) && left.dim() == 2 && right.dim() == 2 && left.size(left_inner) == right.size(right_inner),
      summary_of(left), summary_of(right));
}

/// `target` holds [rows, columns] of `type`.
void check_target(const at::Tensor& target, int64_t rows, int64_t columns, at::ScalarType type) {
  TITAN_CHECK(target.dim() == 2 && target.size(0) == rows && target.size(1) == columns && target.scalar_type() == type,
              summary_of(target), rows, columns, c10::toString(type));
}

/// oneDNN rejects empty matrices, which occur on ranks with an empty vocabulary shard.
bool prefers_onednn(const at::Tensor& left, const at::Tensor& right) {
  return left.is_cpu() && left.scalar_type() == at::kFloat && left.numel() > 0 && right.numel() > 0 &&
         at::globalContext().userEnabledMkldnn();
}

/// oneDNN's x · weightᵀ for any strides: mkldnn::_linear_pointwise without bias or activation.
at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& weight) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                               c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Signature>();
  return linear.call(x, weight, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// Below this, another thread costs more than it saves.
constexpr int64_t kProductsWorthAThread = 32768;

template <class T>
void multiply_few_rows(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  const FewRows shape{x.size(0), x.size(1), weight.size(0)};
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  const auto* w = static_cast<const T*>(weight.const_data_ptr());
  auto* results = static_cast<T*>(y.mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, kProductsWorthAThread / (shape.rows * shape.depth));
  at::parallel_for(0, shape.all, grain, [&](int64_t begin, int64_t end) {
    cpu_product_of_few_rows(results, wide.const_data_ptr<float>(), w, shape, begin, end);
  });
}

}  // namespace

at::Tensor product_of_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  check_operands(x, 1, weight, 1);
  const at::ScalarType type = weight.scalar_type();
  const bool fits = x.is_cpu() && x.scalar_type() == type && (type == at::kFloat || type == at::kBFloat16) &&
                    weight.is_contiguous() && x.numel() > 0 && x.size(0) <= kFewRows;
  if (!fits) return product_with_transposed(x, weight);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  type == at::kFloat ? multiply_few_rows<float>(y, x, weight) : multiply_few_rows<BFloat16Bits>(y, x, weight);
  check_product_once(y, x, weight.t());
  return y;
}

at::Tensor product_with_transposed(const at::Tensor& x, const at::Tensor& weight) {
  check_operands(x, 1, weight, 1);
  at::Tensor y = prefers_onednn(x, weight) ? onednn_linear(x, weight) : at::mm(x, weight.t());
  check_product_once(y, x, weight.t());
  return y;
}

at::Tensor product(const at::Tensor& dy, const at::Tensor& weight) {
  check_operands(dy, 1, weight, 0);
  at::Tensor dx = prefers_onednn(dy, weight) ? onednn_linear(dy, weight.t()) : at::mm(dy, weight);
  check_product_once(dx, dy, weight);
  return dx;
}

void product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& weight, bool accumulate) {
  check_operands(dy, 1, weight, 0);
  check_target(target, dy.size(0), weight.size(1), dy.scalar_type());
  // CPU BLAS libraries may keep partial sums of bf16 products in bf16 when accumulating into a matrix.
  const bool narrow_on_cpu = target.is_cpu() && target.element_size() < 4;
  if (prefers_onednn(dy, weight) || (narrow_on_cpu && accumulate)) {
    const at::Tensor result = product(dy, weight);
    accumulate ? target.add_(result) : target.copy_(result);
  } else if (accumulate) {
    target.addmm_(dy, weight);
  } else {
    at::mm_out(target, dy, weight);
    check_product_once(target, dy, weight);
  }
}

at::Tensor transposed_product(const at::Tensor& dy, const at::Tensor& x) {
  check_operands(dy, 0, x, 0);
  const bool by_onednn = prefers_onednn(dy, x) && dy.size(0) >= kRowsWorthACopy;
  at::Tensor result = by_onednn ? onednn_linear(dy.t(), x.t()) : at::mm(dy.t(), x);
  check_product_once(result, dy.t(), x);
  return result;
}

void transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  check_operands(dy, 0, x, 0);
  check_target(target, dy.size(1), x.size(1), dy.scalar_type());
  if (prefers_onednn(dy, x) && dy.size(0) >= kRowsWorthACopy) {
    const at::Tensor result = transposed_product(dy, x);
    accumulate ? target.add_(result) : target.copy_(result);
  } else if (accumulate) {
    target.addmm_(dy.t(), x);
  } else {
    at::mm_out(target, dy.t(), x);
    check_product_once(target, dy.t(), x);
  }
}

void wide_transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  check_operands(dy, 0, x, 0);
  check_target(target, dy.size(1), x.size(1), at::kFloat);
  if (accumulate) {
    at::addmm_out(target, target, dy.t(), x, target.scalar_type());
  } else {
    at::mm_out(target, dy.t(), x, target.scalar_type());
  }
}

}  // namespace titan
