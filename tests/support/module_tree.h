// A model as a tree of LibTorch's modules, which gives the order and the names that torchtitan's model has.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "titan/base/text.h"
#include "titan/model/model.h"

namespace titan {

/// named_parameters() are the masters (this rank's shards) if allocated, otherwise meta tensors of the parameter's
/// shape.
inline std::shared_ptr<torch::nn::Module> module_tree(const Model& model) {
  auto root = std::make_shared<torch::nn::Module>("model");
  for (const auto& parameter : model.parameter_handles()) {
    std::vector<std::string> path = split(parameter->name(), '.');
    const std::string leaf = path.back();
    path.pop_back();
    std::shared_ptr<torch::nn::Module> module = root;
    for (const std::string& name : path) {
      const auto children = module->named_children();
      const auto* known = children.find(name);
      module = known ? *known : module->register_module(name, std::make_shared<torch::nn::Module>(name));
    }
    const at::Tensor& master = parameter->master;
    module->register_parameter(
        leaf, master.defined() ? master : at::empty(parameter->spec().shape, at::TensorOptions(at::kMeta)),
        /*requires_grad=*/false);
  }
  return root;
}

}  // namespace titan
