// Failed kernel launches as exceptions. No formatting library: nvcc compiles what includes this.
#pragma once

namespace titan {

/// Throws std::runtime_error naming the kernel and CUDA's reason when the last launch on this thread failed.
void check_launch(const char* kernel);

}  // namespace titan
