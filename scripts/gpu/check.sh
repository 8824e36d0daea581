#!/usr/bin/env bash
# What a GPU machine shows of the CUDA and NCCL code, within eight minutes: every case of every kernel on the card and the
# other CUDA unit tests; training on the GPU against the CPU and, in fp32, bf16 and float8, with fused kernels against
# plain operations; one rank over NCCL; and, where NCCL accepts several ranks on one card, layouts against one process.
# A dated page goes to docs/benchmarks/. first.sh is the short form, and names the options.
. "$(dirname -- "${BASH_SOURCE[0]}")/first.sh"
