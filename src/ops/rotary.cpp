#include "titan/ops/rotary.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <numbers>

#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// Rows of the table as they multiply [B, T, H, d/2]: [T, 1, d/2], or [B, T, 1, d/2] for explicit positions.
at::Tensor rows_for(const at::Tensor& table, const at::Tensor& positions, int64_t length) {
  if (!positions.defined()) return table.narrow(0, 0, length).unsqueeze(1);
  return table.index_select(0, positions.reshape({-1})).view({positions.size(0), positions.size(1), 1, table.size(1)});
}

at::Tensor turn(const at::Tensor& x, const at::Tensor& rows, bool in_place) {
  const std::vector<int64_t> pairs{x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2};
  if (in_place && x.scalar_type() == at::kFloat) {
    at::view_as_complex(x.view(pairs)).mul_(rows);
    return x;
  }
  at::Tensor wide = x.to(at::kFloat).contiguous().view(pairs);
  at::Tensor turned = at::view_as_real(at::mul(at::view_as_complex(wide), rows)).view(x.sizes());
  return turned.to(x.scalar_type());
}

struct RotateBackward : BackwardNode {
  at::Tensor rows;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor inverse = rows.conj().resolve_conj();
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = turn(gradient, inverse, /*in_place=*/false);
    }
    return gradients;
  }
};

}  // namespace

at::Tensor rotary_table(int64_t positions, int64_t head_dim, double theta,
                        const std::optional<RotaryScaling>& scaling) {
  at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  at::Tensor frequency = at::pow(at::scalar_tensor(theta, at::kFloat), exponent).reciprocal_();
  if (scaling) {
    auto value = frequency.accessor<float, 1>();
    for (int64_t j = 0; j < value.size(0); ++j) {
      double plain = value[j];
      double wavelength = 2 * std::numbers::pi / plain;
      double original = static_cast<double>(scaling->original_context);
      double blend = (original / wavelength - scaling->low_frequency_factor) /
                     (scaling->high_frequency_factor - scaling->low_frequency_factor);
      blend = std::clamp(blend, 0.0, 1.0);  // 0: long waves, slowed by the factor; 1: short waves, untouched
      value[j] = static_cast<float>((1 - blend) * plain / scaling->factor + blend * plain);
    }
  }
  at::Tensor angle = at::outer(at::arange(positions, at::kFloat), frequency);
  return at::polar(at::ones_like(angle), angle);
}

std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const at::Tensor& table,
                                         const at::Tensor& positions, UnitContext& context) {
  const bool graph = wants_gradient({&query, &key});
  BelowAutograd below;
  at::Tensor rows = rows_for(table, positions, query.size(1));
  const bool query_is_free = !context.recorder.keeps(ResultKind::linear, 0);
  const bool key_is_free = !context.recorder.keeps(ResultKind::linear, 1);
  auto [q, k] = context.recorder.once<2>(ResultKind::rotary, 0, [&]() -> std::array<at::Tensor, 2> {
    return {turn(query, rows, query_is_free).detach(), turn(key, rows, key_is_free).detach()};
  });
  if (graph) {
    auto node = std::make_shared<RotateBackward>();
    node->rows = rows;
    connect(std::move(node), {&query, &key}, {q, k});
  }
  return {q, k};
}

}  // namespace titan
