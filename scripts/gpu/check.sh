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
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

readonly tests=(kernels_test ops_test distributed_test train_test)

pack() {
  local bundle folder=$TITAN_ROOT/build/gpu name
  bundle=$("$TITAN_ROOT/scripts/bundle.sh" --allow-newer | tail -n 1)
  build_targets "${tests[@]}"
  rm -rf "$folder"
  cp -r "$bundle" "$folder"
  for name in "${tests[@]}"; do
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
    --packed | --commit | --device | --page | --log | --only)
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
        "There are --pack, --packed FOLDER, --page FILE, --log FILE, --commit HASH, --only ROWS, --device cpu."
      ;;
  esac
  shift
done

machine="no GPU, --device $device"
if [ "$device" = cuda ]; then
  machine=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1) || true
  [ -n "$machine" ] || fail 69 "there is no GPU here: nvidia-smi is missing or sees none" \
    "On a machine with one, run scripts/gpu/check.sh; --pack makes what it needs where it cannot build."
fi
if [ -n "$packed" ]; then
  programs=$packed
  for name in titan_train "${tests[@]}"; do
    [ -x "$programs/$name" ] || fail 64 "$packed holds no $name" "scripts/gpu/check.sh --pack makes such a folder."
  done
else
  "$TITAN_ROOT/scripts/setup.sh"
  build_targets titan_program "${tests[@]}"
  programs=$TITAN_BUILD
fi
[ -n "$commit" ] || commit=$(git -C "$TITAN_ROOT" rev-parse --short HEAD 2>/dev/null) || commit=unknown
exec python3 "$TITAN_ROOT/scripts/gpu/check.py" --programs "$programs" --machine "$machine" --commit "$commit" \
  --device "$device" "${arguments[@]}"
