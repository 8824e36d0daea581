// Failed kernel launches as exceptions: every launcher calls it once, right behind its launch.
// No formatting library and no LibTorch: nvcc compiles what includes this. What a kernel does wrong while it runs is
// seen by a later call of CUDA, not here.
#pragma once

namespace titan {

/// Throws std::runtime_error naming the kernel and CUDA's reason when the last launch on this thread failed.
void check_launch(const char* kernel);

}  // namespace titan
