// Linear layers that share an input, as one operation: quantise the input once, one product per weight or one fused
// product over adjacent weights. Precision (plain, float8) and communication (tensor parallel) are strategies behind
// it.
#pragma once

#include <ATen/core/Tensor.h>
#include <memory>
#include <optional>
#include <vector>

#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// A matrix on its way to a product. Plain precision: data only.
struct Operand {
  at::Tensor data = {};              // [rows, inner] in the compute dtype; undefined where only float8 is left of it
  Float8Scale scale = {};            // of its float8 values: one number, or one for each row
  bool is_gradient = false;          // of an output
  at::ScalarType type = at::kFloat;  // what data is or was of; read where data may be gone
  at::Tensor quantised = {};         // [rows, inner] in float8
  at::Tensor transposed = {};        // [inner, rows] in float8, where the product wants its own copy
  bool is_kept = false;              // for weight gradients: `ready` makes both float8 matrices at once

  bool defined() const { return data.defined() || quantised.defined() || transposed.defined(); }
  int64_t rows() const {
    if (data.defined()) return data.size(0);
    return quantised.defined() ? quantised.size(0) : transposed.size(1);
  }
};

/// How products are computed; one instance serves many groups and keeps no state between calls. `weights` are those
/// that a matrix is an operand for; whether one of them is multiplied in float8 is its own property
/// (Parameter::in_float8).
class LinearProducts {
 public:
  virtual ~LinearProducts() = default;
  using Weights = std::vector<Parameter*>;

  // What ranks do together, in the same order on all of them.

  /// An input [N, in] of `weights` with its scale, which is `scale` where that is known from before.
  virtual Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                          UnitContext& context) const = 0;
  /// Gradients [N, rows of weights[i]] of outputs with their scales; undefined ones stay so.
  virtual std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                                 UnitContext& context) const = 0;

  // What each rank does for itself.

  /// What of an operand travels between ranks that deal out its rows, and what rows that came are.
  virtual at::Tensor message(const Operand& operand, const Weights& weights) const = 0;
  virtual Operand arrived(const at::Tensor& rows, const Operand& mine, const Weights& weights) const = 0;
  /// As `forward` and `input_gradient` read it.
  virtual Operand ready(Operand operand, const Weights& weights) const = 0;
  /// x [N, in] · weightᵀ [in, rows] → [N, rows]. `columns`, where not null, may become the matrix that `input_gradient`
  /// reads instead of the weight; whoever holds it drops it before the weight changes.
  virtual at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const = 0;
  /// dx [N, in] (+)= dy [N, rows] · weight [rows, in]; `dx` is made when undefined. `columns`: those of forward, or
  /// undefined.
  virtual void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                              at::Tensor& dx) const = 0;
  /// Whether `for_weight_gradients` needs no more of an input than `transposed` and its scale.
  virtual bool keeps_float8(const Weights& weights) const = 0;
  /// An input as `weight_gradient` wants to read it, made once for all of `weights`.
  virtual Operand for_weight_gradients(const Operand& x, const Weights& weights) const = 0;
  /// The weight's gradient [rows, in] = or += dyᵀ · x, fp32; it is marked as written.
  virtual void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const = 0;
};

/// ATen products in the dtype of the operands. Weight gradients are fp32 products of upcast operands, or
/// (`round_weight_gradient`) products rounded to the operands' dtype and then added in fp32.
class DenseProducts : public LinearProducts {
 public:
  explicit DenseProducts(bool round_weight_gradient = false) : round_weight_gradient_(round_weight_gradient) {}
  Operand prepare(const at::Tensor& input, const Weights& weights, const Float8Scale& scale,
                  UnitContext& context) const override;
  std::vector<Operand> prepare_gradients(std::vector<at::Tensor> gradients, const Weights& weights,
                                         UnitContext& context) const override;
  at::Tensor message(const Operand& operand, const Weights& weights) const override;
  Operand arrived(const at::Tensor& rows, const Operand& mine, const Weights& weights) const override;
  Operand ready(Operand operand, const Weights& weights) const override;
  at::Tensor forward(const Operand& x, const Parameter& weight, at::Tensor* columns) const override;
  void input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor& columns,
                      at::Tensor& dx) const override;
  bool keeps_float8(const Weights&) const override { return false; }
  Operand for_weight_gradients(const Operand& x, const Weights& weights) const override;
  void weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const override;

 private:
  bool round_weight_gradient_;
};

/// Which side of a group is the residual stream, whose tokens may be dealt out over ranks; the other side is whole in
/// tokens and may be cut in features.
enum class LinearSplit { input, output };

/// The shape that attention wants of a group's outputs: [samples, length, rows / head_dim, head_dim].
struct HeadShape {
  int64_t samples;
  int64_t length;
  int64_t head_dim;
};

class ParallelLinear {
 public:
  /// `weights` share their input; `first_ordinal` numbers their results for the recompute policy. With an `exchange`
  /// the tokens on `side` are this rank's only. `reads_alone`: no other operation keeps the input for backward, so that
  /// it is worth to keep less of it.
  ParallelLinear(std::vector<Parameter*> weights, int first_ordinal, std::shared_ptr<const LinearProducts> products,
                 LinearSplit side = LinearSplit::input, std::shared_ptr<const SequenceParallel> exchange = nullptr,
                 bool reads_alone = true);

  /// x [n, in], `in` possibly spread over several last dimensions and n over several first ones → one output [n, rows]
  /// per weight, or one of `heads` shape. With an exchange of r ranks [n, in] → [r·n, rows] on the input side,
  /// [r·n, in] → [n, rows] on the output side.
  std::vector<at::Tensor> forward(const at::Tensor& x, UnitContext& context,
                                  const std::optional<HeadShape>& heads = std::nullopt) const;

 private:
  /// What backward needs beside the weights.
  struct Kept {
    Operand x;
    std::vector<at::Tensor> columns;  // of each weight, where products gave them
  };
  /// `kept` is filled; null: there is no backward.
  std::vector<at::Tensor> products(const at::Tensor& x, Kept* kept, UnitContext& context) const;
  std::vector<at::Tensor> gathered_products(const Operand& x, const std::vector<bool>& wanted, Kept* kept) const;
  at::Tensor scattered_product(const Operand& x) const;

  std::vector<Parameter*> weights_;
  int first_ordinal_;
  std::shared_ptr<const LinearProducts> products_;
  LinearSplit side_;
  std::shared_ptr<const SequenceParallel> exchange_;
  bool reads_alone_;
};

// Matrix products on whichever library is fastest where the tensors are. On the CPU fp32 products go to oneDNN through
// ATen's own operator for it: the BLAS inside LibTorch leaves half of an AMD core unused. Everything else is at::mm.

/// x [N, in] · weightᵀ, weight [rows, in] → [N, rows].
at::Tensor product_with_transposed(const at::Tensor& x, const at::Tensor& weight);

/// dy [N, rows] · weight [rows, in] → [N, in].
at::Tensor product(const at::Tensor& dy, const at::Tensor& weight);

/// target [N, in] = dy·weight, or += with `accumulate`; operands and target have one dtype. A GPU writes the result, or
/// adds it in fp32 to what it reads, in its place: no second matrix is made, and a narrow sum is rounded once.
void product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& weight, bool accumulate);

/// target [rows, in] = dyᵀ·x, or += with `accumulate`; operands and target have one dtype.
void transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

/// The same with operands narrower than the target's fp32, which they are not rounded on the way to; CUDA only.
void wide_transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace titan
