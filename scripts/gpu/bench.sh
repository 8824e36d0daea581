#!/usr/bin/env bash
# How fast one GPU trains, within eight minutes, the build included: Llama 3.1 8B (of shapes that fit the card, the first),
# 3.2 3B and 1B in bf16 and float8, with plain and with fused operations, against what the card itself can do; kernel
# tests and rates. A dated page goes to docs/benchmarks/. first.sh is the short form, and names the options.
#   --only ROWS     the rows named, by commas: 8b-bf16-plain, 8b_16_layers-float8-fused, … 1b-bf16-traced
. "$(dirname -- "${BASH_SOURCE[0]}")/first.sh"
