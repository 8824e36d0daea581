// The precompiled header of every file that knows tensors; nothing relies on it being there.
// It holds what those files include anyway and what takes longest: each would cost seconds per file. clang-tidy reads
// the sources without it.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>
