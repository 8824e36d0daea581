// Reading a part of a tensor whose elements lie in a file in any order of strides, whatever kind of file that is.
#pragma once

#include "titan/checkpoint/blob.h"
#include "titan/distributed/tensor_layout.h"

namespace titan {

/// The view of `box`.
at::Tensor narrowed(at::Tensor tensor, const Box& box);

/// Reads `part` of what is stored into `into`, a tensor of the part's shape on any device, of any strides and dtype.
void read_elements(CheckedReader& file, const StoredElements& stored, const Box& part, const at::Tensor& into);

}  // namespace titan
