#include "titan/ops/rotary.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "cpu_elementwise.h"
#include "fused_elementwise.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// Table rows shaped to multiply [B, T, H, d/2]: [T, 1, d/2], or [B, T, 1, d/2] (B may be 1) for explicit positions.
at::Tensor rows_for(const at::Tensor& table, const at::Tensor& positions, int64_t length) {
  if (!positions.defined()) return table.narrow(0, 0, length).unsqueeze(1);
  return table.index_select(0, positions.reshape({-1})).view({positions.size(0), positions.size(1), 1, table.size(1)});
}

bool has_cpu_kernel(const at::Tensor& x) {
  return x.is_cpu() && strided_rows(x, 2) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

template <class T>
void turn_cpu(const at::Tensor& out, const at::Tensor& x, const at::Tensor& rows, bool inverse) {
  const RotaryShape shape{x.size(2), x.size(3), rows.numel() / (x.size(3) / 2), strided_rows(x, 2)->stride,
                          strided_rows(out, 2)->stride};
  const int64_t floats = rotary_scratch(shape);
  at::Tensor scratch = at::empty({at::get_num_threads(), floats}, at::TensorOptions(at::kFloat));
  const auto* table = static_cast<const float*>(rows.const_data_ptr());
  // Tokens; with fewer, starting a thread takes longer than their arithmetic.
  at::parallel_for(0, x.size(0) * x.size(1), 32, [&](int64_t first, int64_t last) {
    cpu_rotate(static_cast<T*>(out.mutable_data_ptr()), static_cast<const T*>(x.const_data_ptr()), table, shape, first,
               last, inverse, scratch.mutable_data_ptr<float>() + at::get_thread_num() * floats);
  });
}

/// x times its rows, or with `inverse` their conjugates, in `out`, which may be x. Returns `out`.
at::Tensor turn(const at::Tensor& x, const at::Tensor& rows, bool inverse, const at::Tensor& out) {
  if (has_cpu_kernel(x) && strided_rows(out, 2) && rows.is_contiguous()) {
    const auto run = x.scalar_type() == at::kFloat ? turn_cpu<float> : turn_cpu<BFloat16Bits>;
    run(out, x, rows, inverse);
    return out;
  }
  const std::vector<int64_t> pairs{x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2};
  const at::Tensor factors = inverse ? rows.conj().resolve_conj() : rows;
  if (out.is_same(x) && x.scalar_type() == at::kFloat) {
    at::view_as_complex(x.view(pairs)).mul_(factors);
    return x;
  }
  at::Tensor wide = x.to(at::kFloat).contiguous().view(pairs);
  return out.copy_(at::view_as_real(at::mul(at::view_as_complex(wide), factors)).view(x.sizes()));
}

at::Tensor empty_for(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

/// Saves the positions, not the rows, which would be a copy per block.
struct RotateBackward : BackwardNode {
  UnitContext* context = nullptr;
  at::Tensor table, positions;
  std::shared_ptr<ColumnGradients> columns;  // null: none

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    torch::autograd::variable_list turned(2);
    for (size_t i = 0; i < 2; ++i) {
      if (!gradients[i].defined()) continue;
      if (context->kernels) gradients[i] = gradients[i].contiguous();
      turned[i] = columns ? columns->columns(i, gradients[i]) : empty_for(gradients[i]);
    }
    if (context->kernels &&
        fused_rotate(gradients[0], gradients[1], turned[0], turned[1], table, positions, true, *context)) {
      return turned;
    }
    at::Tensor rows;
    for (size_t i = 0; i < 2; ++i) {
      if (!gradients[i].defined()) continue;
      if (!rows.defined()) rows = rows_for(table, positions, gradients[i].size(1));
      turned[i] = turn(gradients[i], rows, /*inverse=*/true, turned[i]);
    }
    return turned;
  }
};

/// θ for a sequence of `positions`.
double dynamic_theta(double theta, int64_t positions, int64_t head_dim, const RotaryScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_context);
  const double length = std::max(original, static_cast<double>(positions));
  const auto dim = static_cast<double>(head_dim);
  return theta * std::pow(scaling.factor * length / original - (scaling.factor - 1), dim / (dim - 2));
}

/// The unchanged share of each frequency: 1 keeps it, 0 divides it by the factor.
std::vector<double> shares_kept(const at::Tensor& frequency, int64_t head_dim, double theta,
                                const RotaryScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_context);
  std::vector<double> kept(static_cast<size_t>(frequency.size(0)), 0.0);
  if (scaling.kind == RotaryScaling::Kind::llama3) {
    for (size_t j = 0; j < kept.size(); ++j) {
      const double wavelength = 2 * std::numbers::pi / values<float>(frequency)[j];
      kept[j] = std::clamp(
          (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0,
          1.0);
    }
  } else if (scaling.kind == RotaryScaling::Kind::yarn) {
    // YaRN's bounds: the pair that turns `turns` times within the original context.
    const auto pair_of = [&](double turns) {
      return static_cast<double>(head_dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    const double low = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
    const double high = std::min(std::ceil(pair_of(scaling.beta_slow)), static_cast<double>(head_dim - 1));
    for (size_t j = 0; j < kept.size(); ++j) {
      kept[j] = 1 - std::clamp((static_cast<double>(j) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    }
  }
  return kept;
}

}  // namespace

at::Tensor rotary_table(int64_t positions, int64_t head_dim, double theta,
                        const std::optional<RotaryScaling>& scaling) {
  const bool dynamic = scaling && scaling->kind == RotaryScaling::Kind::dynamic;
  if (dynamic) theta = dynamic_theta(theta, positions, head_dim, *scaling);
  at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  at::Tensor frequency = at::pow(at::scalar_tensor(theta, at::kFloat), exponent).reciprocal_();
  if (scaling && !dynamic) {
    const std::vector<double> kept = shares_kept(frequency, head_dim, theta, *scaling);
    auto value = frequency.accessor<float, 1>();
    for (size_t j = 0; j < kept.size(); ++j) {
      const double plain = value[static_cast<int64_t>(j)];
      value[static_cast<int64_t>(j)] = static_cast<float>((1 - kept[j]) * plain / scaling->factor + kept[j] * plain);
    }
  }
  at::Tensor angle = at::outer(at::arange(positions, at::kFloat), frequency);
  const double length = scaling && scaling->kind == RotaryScaling::Kind::yarn ? scaling->attention_factor : 1.0;
  return at::polar(at::full_like(angle, length), angle);
}

std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const at::Tensor& table,
                                         const at::Tensor& positions, UnitContext& context,
                                         std::shared_ptr<ColumnGradients> gradients) {
  TITAN_CHECK(same_kind(query, key) && query.dim() == 4 && key.dim() == 4 && query.size(0) == key.size(0) &&
                  query.size(1) == key.size(1) && query.size(3) == key.size(3),
              summary_of(query), summary_of(key));
  TITAN_CHECK(table.scalar_type() == at::kComplexFloat && table.dim() == 2 && 2 * table.size(1) == query.size(3) &&
                  table.device() == query.device() && (positions.defined() || table.size(0) >= query.size(1)),
              summary_of(table), summary_of(query));
  TITAN_CHECK(!positions.defined() || (positions.scalar_type() == at::kLong && positions.dim() == 2 &&
                                       (positions.size(0) == 1 || positions.size(0) == query.size(0)) &&
                                       positions.size(1) == query.size(1) && positions.device() == query.device()),
              summary_of(positions), summary_of(query));
  const bool graph = wants_gradient({&query, &key});
  BelowAutograd below;
  const bool query_is_free = !context.recorder.keeps(ResultKind::linear, 0);
  const bool key_is_free = !context.recorder.keeps(ResultKind::linear, 1);
  auto [q, k] = context.recorder.once<2>(ResultKind::rotary, 0, [&]() -> std::array<at::Tensor, 2> {
    at::Tensor turned_query = query_is_free ? query : empty_for(query);
    at::Tensor turned_key = key_is_free ? key : empty_for(key);
    if (!context.kernels || !fused_rotate(query, key, turned_query, turned_key, table, positions, false, context)) {
      const at::Tensor rows = rows_for(table, positions, query.size(1));
      turn(query, rows, /*inverse=*/false, turned_query);
      turn(key, rows, /*inverse=*/false, turned_key);
    }
    return {turned_query.detach(), turned_key.detach()};
  });
  if (graph) {
    auto node = std::make_shared<RotateBackward>();
    node->context = &context;
    node->table = table;
    node->positions = positions;
    node->columns = std::move(gradients);
    connect(std::move(node), {&query, &key}, {q, k});
  }
  return {q, k};
}

}  // namespace titan
