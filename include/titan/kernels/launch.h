// Failed kernel launches as exceptions: every launcher calls check_launch right after its launch. No formatting library
// and no LibTorch, because nvcc compiles the includers. Errors during a kernel's execution are reported by a later CUDA
// call, not here.
#pragma once

namespace titan {

/// Throws std::runtime_error naming the kernel and CUDA's reason if the last launch on this thread failed.
void check_launch(const char* kernel);

/// Number of multiprocessors of the current GPU. The call is cheap: CUDA keeps the number.
int multiprocessors();

}  // namespace titan
