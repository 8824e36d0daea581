#!/usr/bin/env bash
# The kernels as nvcc sees them, where it is installed: they compile for both generations, none spills registers, and those of
# a CUDA build have the instructions that docs/kernels.md says.
# With --full only: compiles every kernel twice with nvcc, a minute, to see what concerns speed alone.
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

instructions_are_the_pages() {
  expect 0 "$checkout/scripts/kernel_instructions.sh" --check
  expect_text "| SwiGLU forward | "
}

# check_page PAGE: of the kernels in code.txt, as if by the nvcc $compiler.
check_page() { python3 "$checkout/scripts/kernel_instructions.py" --compiler "$compiler" --check "$1" <code.txt; }

# The same kernels, and pages that say something else of them.
wrong_pages_are_found() {
  "$checkout/scripts/kernel_instructions.sh" --code kernel >code.txt
  local page=$checkout/docs/kernels.md compiler
  compiler=$(sed -n 's/.*by nvcc \([0-9.]*[0-9]\).*/\1/p' "$page")
  expect 0 check_page "$page"
  sed 's/^\(| SwiGLU forward |.*| \)[0-9.]* |$/\19.9 |/; /^| gradient norm |.*[0-9] |$/d' "$page" >wrong.md
  expect 1 check_page wrong.md
  expect_text "| 9.9 |"
  expect_text "gradient norm: counted | gradient norm |"
  expect_text "on the page nothing"
  sed 's/[0-9.]* of a thread for each/3.0 of a thread for each/' "$page" >fast.md
  expect 1 check_page fast.md
  expect_text "AdamW with stochastic rounding: "
  expect_text "and a GPU has time for 3.0"
  # By another compiler they may be others, but no more than a GPU has time for.
  compiler=1.2
  expect 0 check_page wrong.md
  expect_text "the kernels are by 1.2"
  expect 1 check_page fast.md
}

# Both sides of a branch, a loop, a tail that moves less, a call, and a return in the middle.
way_through_code() {
  cat >code.txt <<'CODE'
		Function : void titan::on_gpu::(anonymous namespace)::some_kernel<titan::on_gpu::Bf16>(long)
        /*0000*/                   S2R R2, SR_TID.X ;                             /* 0x0000000000027919 */
                                                                                  /* 0x000ea20000002100 */
        /*0010*/               @P0 BRA 0xc0 ;                                     /* 0x0000000000027919 */
        /*0020*/                   LDG.E.128 R4, desc[UR8][R4.64] ;               /* 0x0000000000027919 */
        /*0030*/              @!P1 BRA 0x60 ;                                     /* 0x0000000000027919 */
        /*0040*/                   FADD R9, R9, R18 ;                             /* 0x0000000000027919 */
        /*0050*/                   FADD R9, R9, R18 ;                             /* 0x0000000000027919 */
        /*0060*/              @!P2 LDG.E R18, desc[UR8][R4.64] ;                  /* 0x0000000000027919 */
        /*0070*/               @P3 BRA 0x20 ;                                     /* 0x0000000000027919 */
        /*0080*/              @!P4 EXIT ;                                         /* 0x0000000000027919 */
        /*0090*/                   STG.E.64 desc[UR8][R4.64], R18 ;               /* 0x0000000000027919 */
        /*00a0*/               @P5 CALL.REL.NOINC 0xe0 ;                          /* 0x0000000000027919 */
        /*00b0*/                   EXIT ;                                         /* 0x0000000000027919 */
        /*00c0*/                   LDG.E.STRONG.SYS R18, desc[UR8][R4.64] ;       /* 0x0000000000027919 */
        /*00d0*/                   EXIT ;                                         /* 0x0000000000027919 */
        /*00e0*/                   RET.REL.NODEC R4 0x0 ;                         /* 0x0000000000027919 */
CODE
  expect 0 env PYTHONPATH="$checkout/scripts" python3 -c '
import machine_code
kernel = machine_code.Kernel(machine_code.read_kernels(open("code.txt"))["some_kernel<Bf16>(long)"])
print({f"{head:x}": sorted(f"{block:x}" for block in body) for head, body in kernel.loops.items()})
for wanted, aside, past in (("", set(), set()), ("FADD", set(), set()), ("", {"LDG.E"}, {0x90})):
    way = kernel.best_way({0x20}, past, aside, wanted)
    print(way.moved, way.instructions)'
  expect_equal "{'20': ['20', '40', '60']}
28 10
28 12
16 7" "$printed"
}

without_a_cuda_build_it_says_so() {
  mkdir -p checkout
  cp -r "$checkout/scripts" checkout/
  expect 69 checkout/scripts/kernel_instructions.sh
  expect_text "there are no CUDA kernels in "
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
check "the way through machine code is the shortest of those that move most" way_through_code
if [ -e "$checkout/build/release/libtitan_gpu_kernels.a" ]; then
  check "kernels have as many instructions a byte as docs/kernels.md says, and a GPU time for them" instructions_are_the_pages
  check "a page that says something else of the kernels' instructions is found" wrong_pages_are_found
else
  for name in "kernels have as many instructions a byte as docs/kernels.md says, and a GPU time for them" \
    "a page that says something else of the kernels' instructions is found"; do
    skip "$name" "the kernels are not built: there is no CUDA build"
  done
fi
check "without a CUDA build the count of instructions says so" without_a_cuda_build_it_says_so
finish
