#include "tensor_checks.h"

#include <fmt/ranges.h>

#include "titan/base/error.h"

namespace titan {

std::string summary_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     tensor.device().str());
}

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

bool same_form(const at::Tensor& a, const at::Tensor& b) { return same_kind(a, b) && a.sizes() == b.sizes(); }

bool is_number(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.dim() == 0 && tensor.scalar_type() == type;
}

void check_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     std::optional<int64_t> keys) {
  const bool fit = same_kind(query, key) && same_form(key, value) && query.dim() == 4 && key.dim() == 4 &&
                   key.size(0) == query.size(0) && key.size(3) == query.size(3) && key.size(2) > 0 &&
                   query.size(2) % key.size(2) == 0;
  TITAN_CHECK(fit && key.size(1) == keys.value_or(key.size(1)), summary_of(query), summary_of(key), summary_of(value));
}

void check_float8(const at::Tensor& rows, const at::Tensor& scale, const at::Tensor& inverse) {
  TITAN_CHECK(at::isFloat8Type(rows.scalar_type()) && rows.dim() == 2 && scale.scalar_type() == at::kFloat &&
                  same_form(scale, inverse) && scale.device() == rows.device(),
              summary_of(rows), summary_of(scale), summary_of(inverse));
  const bool by_row = scale.dim() == 2 && scale.size(0) == rows.size(0) && scale.size(1) == 1;
  TITAN_CHECK(scale.dim() == 0 || by_row, summary_of(rows), summary_of(scale));
}

}  // namespace titan
