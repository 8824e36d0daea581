// Linear layers that share an input, as one operation: quantise the input once, then one product per weight or one
// fused product over adjacent weights. Precision (dense, float8) and communication (tensor parallel) are strategies.
#pragma once

#include <ATen/core/Tensor.h>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "titan/ops/column_gradients.h"
#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"
#include "titan/plan/operations.h"

namespace titan {

/// An operand of a product. Dense precision uses only `data`.
struct Operand {
  at::Tensor data = {};              // [rows, inner] in the compute dtype; undefined if only the float8 copy remains
  Float8Scale scale = {};            // of the float8 values: one number, or one per row
  bool is_gradient = false;          // gradient of an output
  at::ScalarType type = at::kFloat;  // dtype of `data`, valid after `data` is released
  at::Tensor quantised = {};         // [rows, inner] in float8
  at::Tensor transposed = {};        // [inner, rows] in float8, where the product needs a transposed copy
  bool is_kept = false;              // for weight gradients: `ready` makes both float8 layouts at once
  bool generates = false;            // UnitMode::logits: no loss depends on the bits, and rows may be few

  bool defined() const { return data.defined() || quantised.defined() || transposed.defined(); }
  int64_t rows() const {
    if (data.defined()) return data.size(0);
    return quantised.defined() ? quantised.size(0) : transposed.size(1);
  }
};

class DenseProducts;

/// How products are computed; stateless, one instance serves many ParallelLinear. `weights` are the weights that
/// multiply one matrix; Parameter::in_float8 selects float8 for each product separately.
class LinearProducts {
 public:
  virtual ~LinearProducts() = default;
  using Weights = std::vector<Parameter*>;

  // Collective: all ranks call these in the same order.

  /// Input [N, in] of `weights` with its scale; `scale` is used if it is already known.
  virtual Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                          UnitContext& context) const = 0;
  /// Output gradients [N, rows of weights[i]] with their scales; undefined gradients stay undefined.
  virtual std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                                 UnitContext& context) const = 0;

  // Local to each rank.

  /// The tensor [n, inner] to send for an operand of n rows; the inverse makes an operand of `rows` [m, inner].
  virtual at::Tensor message(const Operand& operand, const Weights& weights) const = 0;
  virtual Operand received(const at::Tensor& rows, const Operand& mine, const Weights& weights) const = 0;
  /// The operand in the form that `forward` and `input_gradient` read.
  virtual Operand ready(Operand operand, const Weights& weights) const = 0;
  /// x [N, in] · weightᵀ [in, rows] → [N, rows]. `columns`, if not null, may receive the matrix [in, rows] that
  /// `input_gradient` reads instead of the weight; the caller releases it before the weight changes.
  virtual at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const = 0;
  /// dx [N, in] (+)= dy [N, rows] · weight [rows, in]; an undefined `dx` is allocated. `columns` [in, rows]: from
  /// forward, or undefined.
  virtual void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                              at::Tensor& dx) const = 0;
  /// True if `for_weight_gradients` needs only `transposed` and its scale.
  virtual bool keeps_float8(const Weights& weights) const = 0;
  /// The input in the form that `weight_gradient` reads, made once for all of `weights`.
  virtual Operand for_weight_gradients(const Operand& x, const Weights& weights) const = 0;
  /// Weight gradient [rows, in] = or += dyᵀ · x, fp32, or = in bf16, rounded once; marks it as written.
  virtual void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const = 0;
  /// Not null if adjacent weights may be multiplied as one matrix: no weight has a scale of its own.
  virtual const DenseProducts* dense() const { return nullptr; }
};

/// ATen products in the operands' dtype. Weight gradients are fp32 products of upcast operands, or with
/// `round_weight_gradient` products in the operands' dtype that are accumulated in fp32. Into a bf16 gradient a GPU
/// writes its product in bf16 (split-K parts may be added in bf16: training.allow_bf16_reduced_precision_reduction); a
/// CPU rounds the fp32 product.
class DenseProducts : public LinearProducts {
 public:
  explicit DenseProducts(bool round_weight_gradient = false) : round_weight_gradient_(round_weight_gradient) {}
  Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                  UnitContext& context) const override;
  std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                         UnitContext& context) const override;
  at::Tensor message(const Operand& operand, const Weights& weights) const override;
  Operand received(const at::Tensor& rows, const Operand& mine, const Weights& weights) const override;
  Operand ready(Operand operand, const Weights& weights) const override;
  at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const override;
  void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                      at::Tensor& dx) const override;
  bool keeps_float8(const Weights&) const override { return false; }
  Operand for_weight_gradients(const Operand& x, const Weights& weights) const override;
  void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const override;
  const DenseProducts* dense() const override { return this; }

  // The same with one matrix [Σ rows, in] over adjacent weights.

  at::Tensor forward(const Operand& x, const at::Tensor& matrix) const;
  void input_gradient(const Operand& dy, const at::Tensor& matrix, at::Tensor& dx) const;
  /// gradient [Σ rows, in] = or += dyᵀ · x.
  void weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const;

 private:
  bool round_weight_gradient_;
};

/// The output shape for attention: [samples, length, rows / head_dim, head_dim].
struct HeadShape {
  int64_t samples;
  int64_t length;
  int64_t head_dim;
};

class ParallelLinear {
 public:
  /// `weights` share their input; `first_ordinal` numbers their results for the recompute policy. With an `exchange`
  /// the tokens on `side` are sharded. `reads_alone`: no other operation saves the input for backward, so a smaller
  /// form of it can be saved; otherwise only a replay saves that form.
  ParallelLinear(std::vector<Parameter*> weights, int first_ordinal, std::shared_ptr<const LinearProducts> products,
                 LinearSplit side = LinearSplit::input, std::shared_ptr<const SequenceParallel> exchange = nullptr,
                 bool reads_alone = true);

  /// For `forward`, if all its weights may be multiplied as one matrix (dense products of weights that are adjacent in
  /// memory); else null. Hand it to the operations that compute the gradients of the outputs, so that they need no
  /// copy.
  std::shared_ptr<ColumnGradients> column_gradients() const;

  /// x [n, in] (`in` may span the last dimensions and n the first) → one output [n, rows] per weight, or of `heads`
  /// shape. With an exchange over r ranks: [n, in] → [r·n, rows] on the input side, [r·n, in] → [n, rows] on the output
  /// side. With `gradients` one product computes all outputs, unless the recorder keeps or skips one of them, and one
  /// each their part of backward; the outputs are then columns of one matrix, and their rows are not adjacent.
  std::vector<at::Tensor> forward(const at::Tensor& x, UnitContext& context,
                                  const std::optional<HeadShape>& heads = std::nullopt,
                                  std::shared_ptr<ColumnGradients> gradients = nullptr) const;

 private:
  /// What backward needs in addition to the weights.
  struct Kept {
    Operand x;
    std::vector<at::Tensor> columns;  // [in, rows] of each weight, where the product returned them
  };
  /// Fills `kept`; null: no backward.
  std::vector<at::Tensor> products(const at::Tensor& x, Kept* kept, bool may_join, UnitContext& context) const;
  std::vector<at::Tensor> gathered_products(const Operand& x, const std::vector<bool>& wanted, Kept* kept) const;
  std::vector<at::Tensor> joined_products(const Operand& x, const at::Tensor& matrix) const;
  /// Calls `multiply` with all rows of x that this rank multiplies, in one piece or as they arrive.
  void for_gathered(const Operand& x, const std::function<void(int64_t first, const Operand& rows)>& multiply) const;
  at::Tensor scattered_product(const Operand& x) const;

  std::vector<Parameter*> weights_;
  int first_ordinal_;
  std::shared_ptr<const LinearProducts> products_;
  LinearSplit side_;
  std::shared_ptr<const SequenceParallel> exchange_;
  bool reads_alone_;
};

}  // namespace titan
