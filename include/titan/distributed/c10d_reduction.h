// Our reductions in the words of LibTorch's process groups.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "titan/distributed/communicator.h"

namespace titan {

inline c10d::ReduceOp c10d_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return c10d::ReduceOp::SUM;
    case Reduction::max:
      return c10d::ReduceOp::MAX;
    case Reduction::min:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

}  // namespace titan
