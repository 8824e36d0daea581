// Marks functions that nvcc compiles for host and device alike; nothing to other compilers.
#pragma once

#ifdef __CUDACC__
#define TITAN_HOST_DEVICE __host__ __device__
#else
#define TITAN_HOST_DEVICE
#endif
