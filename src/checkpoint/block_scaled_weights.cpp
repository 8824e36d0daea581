#include "titan/checkpoint/block_scaled_weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "titan/checkpoint/blob.h"

namespace titan {
namespace {

constexpr const char* kFactors = "_scale_inv";

bool is_quantised(const LogicalTensor& tensor) { return tensor.type == at::kFloat8_e4m3fn; }

int64_t blocks(int64_t length, int64_t block) { return (length + block - 1) / block; }

/// For each row (or column) of a stretch, its block's place among those that the stretch meets.
at::Tensor block_of_each(int64_t first, int64_t count, int64_t block) {
  return at::arange(first, first + count, at::kLong).div_(block, "floor").sub_(first / block);
}

}  // namespace

BlockScaledWeights::BlockScaledWeights(TensorSource& stored, ScaleBlock block) : stored_(stored), block_(block) {
  tensors_ = stored.tensors();
  for (const auto& [name, tensor] : stored.tensors()) {
    if (!is_quantised(tensor)) continue;
    const auto fail = [&](const std::string& why) {
      throw DamageError(fmt::format("{}: {} is quantised, and {}", stored.description(), name, why));
    };
    if (tensor.shape.size() != 2) fail("has no rows and columns to cut into blocks");
    const auto factors = stored.tensors().find(name + kFactors);
    if (factors == stored.tensors().end()) fail(fmt::format("there is no {}{}", name, kFactors));
    const std::vector<int64_t> wanted{blocks(tensor.shape[0], block.rows), blocks(tensor.shape[1], block.columns)};
    if (factors->second.shape != wanted) {
      fail(fmt::format("its {}{} has shape {} instead of {}", name, kFactors, shape_text(factors->second.shape),
                       shape_text(wanted)));
    }
    if (is_quantised(factors->second) || !c10::isFloatingType(factors->second.type)) {
      fail(fmt::format("its {}{} is of {}", name, kFactors, python_name(factors->second.type)));
    }
    tensors_.at(name).type = at::kFloat;
    tensors_.erase(name + kFactors);
  }
}

at::Tensor BlockScaledWeights::factors(const std::string& name, const Box& box) {
  const std::vector<int64_t> sizes{block_.rows, block_.columns};
  Box needed;
  for (size_t d = 0; d < sizes.size(); ++d) {
    needed.offset.push_back(box.offset[d] / sizes[d]);
    needed.extent.push_back(blocks(box.offset[d] + box.extent[d], sizes[d]) - needed.offset[d]);
  }
  const at::Tensor by_block = at::empty(needed.extent, at::kFloat);
  stored_.read(name + kFactors, needed, by_block);
  return by_block.index_select(0, block_of_each(box.offset[0], box.extent[0], sizes[0]))
      .index_select(1, block_of_each(box.offset[1], box.extent[1], sizes[1]));
}

void BlockScaledWeights::read(const std::string& name, const Box& box, const at::Tensor& into) {
  if (!is_quantised(stored_.tensors().at(name))) return stored_.read(name, box, into);
  if (box.numel() == 0) return;
  const at::Tensor quantised = at::empty(box.extent, at::kFloat8_e4m3fn);
  stored_.read(name, box, quantised);
  into.copy_(quantised.to(at::kFloat).mul_(factors(name, box)));
}

}  // namespace titan
