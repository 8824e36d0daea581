#!/usr/bin/env bash
# What a GPU machine shows of the CUDA and NCCL code, within eight minutes: every case of every kernel on the card and the
# other CUDA unit tests; training on the GPU against the CPU and, in fp32, bf16 and float8, with fused kernels against
# plain operations; one rank over NCCL; and, where NCCL accepts several ranks on one card, layouts against one process.
# A dated page goes to docs/benchmarks/. Exit codes: 0 all held, 1 something did not, 69 there is no GPU.
#   scripts/gpu/check.sh                      builds, then checks
#   scripts/gpu/check.sh --pack               makes build/gpu, to be taken to a machine that has a GPU and no compiler
#   scripts/gpu/check.sh --packed build/gpu   checks with that folder: needs python3 and its torch 2.11.0
#   --page FILE   instead of docs/benchmarks/gpu-check-DATE.md        --commit HASH   where git cannot say it
#   --only ROW    the rows named, by commas                        --log FILE    adds all that the programs print
#   --device cpu    without a GPU, to try the script itself
. "$(dirname -- "${BASH_SOURCE[0]}")/prepare.sh"

readonly script=check.sh programs_needed=(kernels_test ops_test distributed_test train_test)
readonly value_options='--page --log --only' flags=''
readonly usage='--pack, --packed FOLDER, --page FILE, --log FILE, --commit HASH, --only ROWS, --device cpu'

pack() {
  local bundle folder=$TITAN_ROOT/build/gpu
  bundle=$("$TITAN_ROOT/scripts/bundle.sh" --allow-newer | tail -n 1)
  rm -rf "$folder"
  cp -r "$bundle" "$folder"
  copy_programs "$folder"
  printf '%s\n' "$folder"
}

prepare "$@"
exec python3 "$TITAN_ROOT/scripts/gpu/check.py" --programs "$programs" --machine "$machine" --commit "$commit" \
  --device "$device" "${arguments[@]}"
