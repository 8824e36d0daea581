#!/usr/bin/env bash
# Compiles the CUDA kernels for both generations of GPUs that the program is built for, and fails when one spills
# registers to memory, which no test on the host would show. Needs nvcc 13, no GPU.
#   scripts/check_kernels.sh              every src/kernels/*.cu; prints what each kernel takes
#   scripts/check_kernels.sh FILE.cu...   those files
# Exit codes: 0 none spills, 1 one spills or does not compile, 69 there is no nvcc.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc") ||
  fail 69 "there is no nvcc, on PATH or in CUDA_HOME" "Install a CUDA 13 toolkit; the kernels are then compiled for a GPU too."
[ $# -gt 0 ] || set -- "$TITAN_ROOT"/src/kernels/*.cu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One file for one generation: what ptxas says of it goes to a log, the exit code is nvcc's.
compile() {
  local options=()
  case $4 in *adam.cu) options=(-fmad=false) ;; esac # as in cmake/Parts.cmake
  "$1" -std=c++20 -arch="sm_$3" -O3 "${options[@]}" -Xptxas -v -I"$TITAN_ROOT/include" -c "$4" \
    -o "$2/$(basename "$4" .cu).$3.o" >"$2/$(basename "$4" .cu).$3.log" 2>&1 || echo "$4 for sm_$3" >>"$2/failed"
}
export -f compile
export TITAN_ROOT
for file in "$@"; do
  for generation in 80 90a; do printf '%s\0' "$nvcc" "$scratch" "$generation" "$file"; done
done | xargs -0 -n 4 -P "$(build_jobs)" bash -c 'compile "$@"' compile

if [ -e "$scratch/failed" ]; then
  cat "$scratch"/*.log >&2
  fail 1 "nvcc refuses $(sort "$scratch/failed" | paste -sd, | sed 's/,/, /g'); its messages are above"
fi
# ptxas: a line with the kernel's name, one with its stack and spills, one with its registers.
cat "$scratch"/*.log | c++filt | awk '
  /Compiling entry function/ { generation = $NF; gsub(/\x27/, "", generation) }
  /Function properties for/ { sub(/.*Function properties for /, ""); kernel = $0; sub(/^.*::/, "", kernel); name = $0 }
  /bytes spill stores/ { spilled = $5 + $9 }
  /: Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/)
    printf "%-8s %4d registers %s %s\n", generation, substr($0, RSTART + 5, RLENGTH - 5), spilled ? "SPILLS " spilled " bytes" : "", name
    if (spilled) failures++
    kernels++
  }
  END {
    printf "%d kernels, %d of them spill\n", kernels, failures
    exit (failures > 0 || kernels == 0)
  }'
