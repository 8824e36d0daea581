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
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

readonly programs_needed=(kernels_test bench_device_ceiling bench_kernel_rates)

pack() {
  local folder name
  folder=$("$TITAN_ROOT/scripts/gpu/check.sh" --pack | tail -n 1)
  build_targets "${programs_needed[@]}"
  for name in "${programs_needed[@]}"; do
    strip -o "$folder/lib/$name" "$TITAN_BUILD/$name"
    cp "$folder/titan_train" "$folder/$name" # the start script starts what it is named after
  done
  printf '%s\n' "$folder"
}

packed='' commit='' device=cuda arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --pack)
      pack
      exit 0
      ;;
    --short) arguments+=("$1") ;;
    --packed | --commit | --device | --page | --log | --only | --text)
      [ $# -ge 2 ] || fail 64 "$1 needs a value"
      case $1 in
        --packed) packed=$2 ;;
        --commit) commit=$2 ;;
        --device) device=$2 ;;
        *) arguments+=("$1" "$2") ;;
      esac
      shift
      ;;
    *)
      fail 64 "unknown argument $1" \
        "There are --pack, --packed FOLDER, --short, --only ROWS, --text FILE, --page FILE, --log FILE, --commit HASH, --device cpu."
      ;;
  esac
  shift
done

machine="no GPU, --device $device"
if [ "$device" = cuda ]; then
  machine=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1) || true
  [ -n "$machine" ] || fail 69 "there is no GPU here: nvidia-smi is missing or sees none" \
    "On a machine with one, run scripts/gpu/bench.sh; --pack makes what it needs where it cannot build."
fi
begin=$(date +%s)
if [ -n "$packed" ]; then
  programs=$packed
  for name in titan_train "${programs_needed[@]}"; do
    [ -x "$programs/$name" ] || fail 64 "$packed holds no $name" "scripts/gpu/bench.sh --pack makes such a folder."
  done
else
  "$TITAN_ROOT/scripts/setup.sh"
  build_targets titan_program "${programs_needed[@]}"
  programs=$TITAN_BUILD
fi
[ -n "$commit" ] || commit=$(git -C "$TITAN_ROOT" rev-parse --short HEAD 2>/dev/null) || commit=unknown
exec python3 "$TITAN_ROOT/scripts/gpu/bench.py" --programs "$programs" --machine "$machine" --commit "$commit" \
  --device "$device" --spent $(($(date +%s) - begin)) "${arguments[@]}"
