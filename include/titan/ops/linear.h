// Linear layers that share an input, as one operation: quantise the input once, one product per weight or one fused
// product over adjacent weights. Precision (plain, float8) and communication (tensor parallel) are strategies behind
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "titan/ops/parameter.h"
#include "titan/ops/token_exchange.h"
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

/// Which side of a group is the residual stream, whose tokens may be dealt out over ranks; the other side is whole in
/// tokens and may be cut in features.
enum class StreamSide { input, output };

/// The shape that attention wants of a group's outputs: [samples, length, rows / head_dim, head_dim].
struct HeadShape {
  int64_t samples;
  int64_t length;
  int64_t head_dim;
};

class LinearGroup {
 public:
  /// `weights` share their input; `first_ordinal` numbers their results for the recompute policy. With an `exchange`
  /// the tokens on `side` are this rank's only.
  LinearGroup(std::vector<Parameter*> weights, int first_ordinal, std::shared_ptr<const LinearProducts> products,
              StreamSide side = StreamSide::input, std::shared_ptr<const TokenExchange> exchange = nullptr);

  /// x [n, in], `in` possibly spread over several last dimensions and n over several first ones → one output [n, rows]
  /// per weight, or one of `heads` shape. With an exchange of r ranks [n, in] → [r·n, rows] on the input side,
  /// [r·n, in] → [n, rows] on the output side.
  std::vector<at::Tensor> forward(const at::Tensor& x, UnitContext& context,
                                  const std::optional<HeadShape>& heads = std::nullopt) const;

 private:
  std::vector<at::Tensor> products(const at::Tensor& x, UnitContext& context) const;
  std::vector<at::Tensor> gathered_products(const at::Tensor& x, const std::vector<bool>& wanted,
                                            UnitContext& context) const;
  at::Tensor scattered_product(const at::Tensor& x, UnitContext& context) const;

  std::vector<Parameter*> weights_;
  int first_ordinal_;
  std::shared_ptr<const LinearProducts> products_;
  StreamSide side_;
  std::shared_ptr<const TokenExchange> exchange_;
};

}  // namespace titan
