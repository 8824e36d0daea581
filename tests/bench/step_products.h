// The matrix products of a model's training step, as the traces of a block and of the head list them: what
// bench_device_ceiling measures. It cannot drift from what the plan counts, whatever products the layers join.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/model/llama/llama.h"
#include "titan/plan/unit_trace.h"

namespace titan {

enum class Pass : uint8_t { forward, input_gradient, weight_gradient };
constexpr std::array<const char*, 3> kPassNames{"forward", "input_gradient", "weight_gradient"};

struct Matrix {
  std::string name;
  int64_t outputs = 0, inputs = 0;
};

struct StepProduct {
  Matrix matrix;
  Pass pass = Pass::forward;
  int64_t tokens = 0, count = 0;  // rows of the input; calls in a step
  bool in_float8 = false, accumulates = false;
  bool in_training = true;  // else measured only to compare with

  std::array<int64_t, 3> shape() const {  // m, k, n
    if (pass == Pass::forward) return {tokens, matrix.inputs, matrix.outputs};
    if (pass == Pass::input_gradient) return {tokens, matrix.outputs, matrix.inputs};
    return {matrix.outputs, tokens, matrix.inputs};
  }
  double operations() const {
    const auto [m, k, n] = shape();
    return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  }
};

/// Weights that share an input: as one matrix, or as several.
inline Matrix joined(const std::vector<Matrix>& group) {
  Matrix all = group[0];
  for (size_t i = 1; i < group.size(); ++i) {
    all.name += "+" + group[i].name;
    all.outputs += group[i].outputs;
  }
  return all;
}

/// The products of one pass as the trace lists them: one for each matrix of the group, or one for all. Training makes
/// one of dense matrices that the trace lists apart (ParallelLinear::column_gradients); they stay for comparison.
inline void add_pass(std::vector<StepProduct>& products, const std::vector<Matrix>& group,
                     const std::vector<const TracedWork*>& work, const StepProduct& like) {
  TITAN_CHECK(work.size() == group.size() || work.size() == 1, work.size(), group.size());
  for (size_t i = 0; i < work.size(); ++i) {
    StepProduct product = like;
    product.matrix = work.size() == group.size() ? group[i] : joined(group);
    product.in_float8 = work[i]->kind == WorkKind::float8_product;
    // float8 products cannot add to a result.
    if (like.pass == Pass::input_gradient) product.accumulates = i > 0 && !product.in_float8;
    product.in_training = work.size() == 1 || product.in_float8;
    TITAN_CHECK(work[i]->operations == product.operations(), product.matrix.name, work[i]->operations);
    products.push_back(product);
  }
  if (products.back().in_training) return;
  StepProduct all = like;
  all.matrix = joined(group);
  products.push_back(all);
}

inline std::vector<const TracedWork*> products_in(const std::vector<TracedWork>& work, bool of_weights) {
  std::vector<const TracedWork*> found;
  for (const TracedWork& each : work) {
    const bool is_product = each.kind == WorkKind::product || each.kind == WorkKind::float8_product;
    if (is_product && each.is_weight_gradient == of_weights) found.push_back(&each);
  }
  return found;
}

/// Of all blocks, in the order of one block.
inline std::vector<StepProduct> block_products(const LlamaArguments& a, const TraceShape& shape) {
  const int64_t query = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const std::vector<std::vector<Matrix>> groups{{{"wq", query, a.dim}, {"wk", kv, a.dim}, {"wv", kv, a.dim}},
                                                {{"wo", a.dim, query}},
                                                {{"w1", a.hidden, a.dim}, {"w3", a.hidden, a.dim}},
                                                {{"w2", a.dim, a.hidden}}};
  UnitTrace trace(shape);
  trace_llama_block(trace, a, 0);
  std::vector<StepProduct> products;
  size_t next = 0;
  for (const TracedOperation& operation : trace.operations()) {
    if (operation.name != "linear") continue;
    TITAN_CHECK(next < groups.size(), next);
    const std::vector<Matrix>& group = groups[next++];
    StepProduct like;
    like.tokens = shape.tokens(), like.count = a.layers;
    add_pass(products, group, products_in(operation.forward, false), like);
    like.pass = Pass::input_gradient;
    add_pass(products, group, products_in(operation.backward, false), like);
    like.pass = Pass::weight_gradient;
    add_pass(products, group, products_in(operation.backward, true), like);
  }
  TITAN_CHECK(next == groups.size(), next);
  return products;
}

/// Of the head, chunk by chunk.
inline std::vector<StepProduct> head_products(const LlamaArguments& a, const TraceShape& shape) {
  UnitTrace trace(shape);
  trace_llama_head(trace, a);
  const int64_t rows = (shape.tokens() + shape.loss.chunks - 1) / shape.loss.chunks;
  std::vector<StepProduct> products;
  for (const TracedOperation& operation : trace.operations()) {
    if (operation.name != "output and loss") continue;
    for (const bool of_weights : {false, true}) {
      for (const TracedWork* work : products_in(operation.forward, of_weights)) {
        StepProduct product;
        product.matrix = {"output", a.vocabulary, a.dim}, product.tokens = rows;
        product.count = (shape.tokens() + rows - 1) / rows;
        product.pass = static_cast<Pass>(products.size());
        product.accumulates = product.pass == Pass::weight_gradient;  // all chunks but the first
        const double all = product.operations() / static_cast<double>(rows) * static_cast<double>(shape.tokens());
        TITAN_CHECK(work->operations == all, work->operations, all);
        products.push_back(product);
      }
    }
  }
  TITAN_CHECK(products.size() == kPassNames.size(), products.size());
  return products;
}

}  // namespace titan
