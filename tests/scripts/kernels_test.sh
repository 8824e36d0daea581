#!/usr/bin/env bash
# The kernels as nvcc sees them, where it is installed: they compile for both generations and none spills registers.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

no_spills() {
  "$checkout/scripts/check_kernels.sh"
}

# One hundred sums under way, and 32 registers for them.
spilling_kernel_is_found() {
  cat >spilling.cu <<'CUDA'
__global__ void __launch_bounds__(1024, 2) spilling(const float* in, float* out) {
  float sums[100];
#pragma unroll
  for (int i = 0; i < 100; ++i) sums[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 100; ++i) out[i * 1024 + threadIdx.x] = sums[i] * sums[(i + 37) % 100];
}
CUDA
  expect 1 "$checkout/scripts/check_kernels.sh" "$PWD/spilling.cu"
  expect_text SPILLS
}

broken_kernel_is_named() {
  echo '__global__ void broken() { nothing(); }' >broken.cu
  expect 1 "$checkout/scripts/check_kernels.sh" "$PWD/broken.cu"
  expect_text "broken.cu for sm_80"
}

without_nvcc_it_says_so() {
  expect 69 env PATH=/usr/bin:/bin CUDA_HOME=/nowhere "$checkout/scripts/check_kernels.sh"
  expect_text "there is no nvcc"
}

if command -v nvcc >/dev/null; then
  check "every kernel compiles for sm_80 and sm_90a and none spills" no_spills
  check "a kernel that spills is found" spilling_kernel_is_found
  check "a kernel that does not compile is named" broken_kernel_is_named
else
  for name in "every kernel compiles for sm_80 and sm_90a and none spills" "a kernel that spills is found" \
    "a kernel that does not compile is named"; do
    skip "$name" "there is no nvcc"
  done
fi
check "without nvcc the check of the kernels says so" without_nvcc_it_says_so
finish
