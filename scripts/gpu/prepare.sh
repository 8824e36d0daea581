#!/usr/bin/env bash
# What bench.sh and check.sh share; sourced by them. Before the call of prepare, a script sets `script` (its name),
# `programs_needed` (built or packed), `value_options` (for its Python), `flags`, and `usage`, and defines pack().
# shellcheck disable=SC2154  # set by the script that sources this
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

# copy_programs FOLDER: the needed programs, stripped, into a packed folder.
copy_programs() {
  local name
  build_targets "${programs_needed[@]}"
  for name in "${programs_needed[@]}"; do
    strip -o "$1/lib/$name" "$TITAN_BUILD/$name"
    cp "$1/titan_train" "$1/$name" # the start script starts what it is named after
  done
}

# parse_options ARGUMENTS: sets packed, commit, device and arguments; --pack packs and exits.
parse_options() {
  packed='' commit='' device=cuda arguments=()
  while [ $# -gt 0 ]; do
    case " --packed --commit --device $value_options " in
      *" $1 "*)
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
        case " $flags " in
          *" $1 "*) arguments+=("$1") ;;
          *)
            [ "$1" = --pack ] || fail 64 "unknown argument $1" "There are $usage."
            pack
            exit 0
            ;;
        esac
        ;;
    esac
    shift
  done
}

# prepare ARGUMENTS: parses them, requires a GPU unless --device is another one, and builds the programs or takes the
# packed ones. Sets machine, programs, commit, device and arguments.
prepare() {
  local name
  parse_options "$@"
  machine="no GPU, --device $device"
  if [ "$device" = cuda ]; then
    machine=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1) || true
    [ -n "$machine" ] || fail 69 "there is no GPU here: nvidia-smi is missing or sees none" \
      "On a machine with one, run scripts/gpu/$script; --pack makes what it needs where it cannot build."
  fi
  if [ -n "$packed" ]; then
    programs=$packed
    for name in titan_train "${programs_needed[@]}"; do
      [ -x "$programs/$name" ] || fail 64 "$packed holds no $name" "scripts/gpu/$script --pack makes such a folder."
    done
  else
    "$TITAN_ROOT/scripts/setup.sh"
    build_targets titan_program "${programs_needed[@]}"
    programs=$TITAN_BUILD
  fi
  [ -n "$commit" ] || commit=$(git -C "$TITAN_ROOT" rev-parse --short HEAD 2>/dev/null) || commit=unknown
}
