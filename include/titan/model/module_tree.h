// The model as LibTorch's users know models: a tree of modules that can be walked and printed.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "titan/model/model.h"

namespace titan {

/// Its named_parameters() are the model's parameters in their order: the masters themselves (this rank's shards) where
/// they are allocated, else tensors of the meta device in the parameter's shape.
std::shared_ptr<torch::nn::Module> module_tree(const Model& model);

}  // namespace titan
