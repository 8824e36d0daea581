#!/usr/bin/env bash
# How fast one GPU trains, within eight minutes, the build included: kernel tests, one rank over NCCL, then Llama 3.1 8B,
# 3.2 3B and 1B in bf16 and float8, with plain and with fused operations, against what the card itself can do.
# A dated page goes to docs/benchmarks/. Exit codes: 0 all ran, 1 something did not, 69 there is no GPU.
#   scripts/gpu/bench.sh                      builds, then measures
#   scripts/gpu/bench.sh --pack               makes build/gpu, to be taken to a machine that has a GPU and no compiler
#   scripts/gpu/bench.sh --packed build/gpu   measures with that folder: needs python3 and its torch 2.11.0
#   --only ROW    the rows named, by commas: 8b-bf16-plain, 8b-bf16-fused, 8b-float8-plain, … 1b-float8-fused
#   --short       8b-bf16-fused and 8b-float8-fused alone        --text FILE   trains on that text, not on stories
#   --page FILE   instead of docs/benchmarks/gpu-bench-DATE.md   --commit HASH   where git cannot say it
#   --log FILE    adds all that the programs print           --device cpu  without a GPU, with a tiny model, to try the script itself
. "$(dirname -- "${BASH_SOURCE[0]}")/prepare.sh"

readonly script=bench.sh programs_needed=(kernels_test bench_device_ceiling bench_kernel_rates)
readonly value_options='--page --log --only --text' flags='--short'
readonly usage='--pack, --packed FOLDER, --short, --only ROWS, --text FILE, --page FILE, --log FILE, --commit HASH, --device cpu'

pack() {
  local folder
  folder=$("$TITAN_ROOT/scripts/gpu/check.sh" --pack | tail -n 1)
  copy_programs "$folder"
  printf '%s\n' "$folder"
}

begin=$(date +%s)
prepare "$@"
exec python3 "$TITAN_ROOT/scripts/gpu/bench.py" --programs "$programs" --machine "$machine" --commit "$commit" \
  --device "$device" --spent $(($(date +%s) - begin)) "${arguments[@]}"
