// The table of the kernels that are compiled for the host (cuda_on_host.h): pointers are host memory, streams are
// ignored.
#pragma once

#include "titan/kernels/kernels.h"

namespace titan {

const Kernels& host_kernels();

}  // namespace titan
