// Tensors in memory in the place of those in files.
#pragma once

#include <map>
#include <string>

#include "titan/checkpoint/tensor_source.h"

namespace titan {

class MemorySource : public TensorSource {
 public:
  explicit MemorySource(std::map<std::string, at::Tensor> values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) tensors_[name] = {name, value.scalar_type(), value.sizes().vec()};
  }
  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& into) override {
    at::Tensor part = values_.at(name);
    for (size_t d = 0; d < box.offset.size(); ++d) {
      part = part.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
    }
    into.copy_(part);
  }
  std::string description() const override { return "memory"; }

 private:
  std::map<std::string, at::Tensor> values_;
  std::map<std::string, LogicalTensor> tensors_;
};

}  // namespace titan
