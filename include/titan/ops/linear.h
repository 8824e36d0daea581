// Linear layers that share an input, as one operation: quantise the input once, one product per weight or one fused
// product over adjacent weights. Precision (plain, float8) and communication (tensor parallel) are strategies behind
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// A matrix as a product consumes it. Plain precision: data only.
struct Operand {
  at::Tensor data;        // [rows, inner]
  at::Tensor transposed;  // [inner, rows] where the kernel wants its own copy
  at::Tensor scale;       // what the stored values were multiplied by
};

/// How products are computed; one instance serves many groups and keeps no state between calls.
class LinearProducts {
 public:
  virtual ~LinearProducts() = default;
  virtual Operand quantise(const at::Tensor& activation, UnitContext& context) const = 0;
  /// x [N, in] · weightᵀ [in, rows] → [N, rows].
  virtual at::Tensor forward(const Operand& x, const at::Tensor& weight) const = 0;
  /// dx [N, in] (+)= dy [N, rows] · weight [rows, in]; `dx` is made when undefined.
  virtual void input_gradient(const Operand& dy, const at::Tensor& weight, at::Tensor& dx) const = 0;
  /// x as `weight_gradient` wants to read it, made once for all weights that share it; `gradient` is one of theirs.
  virtual Operand for_weight_gradients(const Operand& x, const at::Tensor& gradient) const = 0;
  /// gradient [rows, in] = or += dyᵀ · x, fp32.
  virtual void weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const = 0;
};

/// ATen products in the dtype of the operands. Weight gradients are fp32 products of upcast operands, or
/// (`round_weight_gradient`) products rounded to the operands' dtype and then added in fp32.
class DenseProducts : public LinearProducts {
 public:
  explicit DenseProducts(bool round_weight_gradient = false) : round_weight_gradient_(round_weight_gradient) {}
  Operand quantise(const at::Tensor& activation, UnitContext& context) const override;
  at::Tensor forward(const Operand& x, const at::Tensor& weight) const override;
  void input_gradient(const Operand& dy, const at::Tensor& weight, at::Tensor& dx) const override;
  Operand for_weight_gradients(const Operand& x, const at::Tensor& gradient) const override;
  void weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const override;

 private:
  bool round_weight_gradient_;
};

class LinearGroup {
 public:
  /// `weights` share their input; `first_ordinal` numbers their results for the recompute policy. With `head_dim` the
  /// outputs are shaped [..., rows / head_dim, head_dim].
  LinearGroup(std::vector<Parameter*> weights, int first_ordinal, std::shared_ptr<const LinearProducts> products,
              int64_t head_dim = 0);

  /// x [..., in], `in` possibly spread over several last dimensions → one output [..., rows] per weight.
  std::vector<at::Tensor> forward(const at::Tensor& x, UnitContext& context) const;

 private:
  std::vector<int64_t> output_shape(const at::Tensor& x, const Parameter& weight) const;

  std::vector<Parameter*> weights_;
  int first_ordinal_;
  std::shared_ptr<const LinearProducts> products_;
  int64_t head_dim_;
};

}  // namespace titan
