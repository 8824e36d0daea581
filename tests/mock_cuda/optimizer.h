// The one kernel of the mock GPU that may do something: with MOCK_CUDA_OPTIMIZER set a step of the fp32 optimizer adds
// 1 to every weight, 2 to the first moments and 3 to the second. So what a checkpoint holds tells of which step it is.
// What comes from memory that is not pinned is then copied to the device, hollow or not: a state that is loaded does,
// and nothing of a step.
#pragma once

#include <functional>
#include <string>

namespace mock_cuda {

bool optimizer_counts();
/// What the kernel called `name` does with these arguments; null for every other kernel.
std::function<void()> work_of(const std::string& name, void** arguments);

}  // namespace mock_cuda
