# Shared by the scripts in this folder: sourced, never run. Sets strict mode and gives the folders, messages (always on
# stderr, so that a script's stdout is its result) and the build step.
# shellcheck shell=bash
set -euo pipefail

TITAN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
TITAN_CACHE=${TITAN_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/titan}
TITAN_BUILD=$TITAN_ROOT/build/release
# Absolute, because CMake and ninja run in other folders.
case $TITAN_CACHE in /*) ;; *) TITAN_CACHE=$PWD/$TITAN_CACHE ;; esac
case ${TITAN_LIBTORCH:-/} in /*) ;; *) export TITAN_LIBTORCH=$PWD/$TITAN_LIBTORCH ;; esac
export TITAN_CACHE
# A command that Ctrl-C ended is no failure to explain.
trap 'exit 130' INT

say() { printf '%s\n' "$*" >&2; }

# fail CODE LINE...: the lines, the first marked as an error, then exit with CODE (64: usage, 69: something is missing).
fail() {
  local code=$1
  shift
  printf 'error: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit "$code"
}

# free_gigabytes: of memory; in a container no more than its limit.
free_gigabytes() {
  { cat /proc/meminfo /sys/fs/cgroup/memory.max 2>/dev/null || true; } |
    awk '/^MemAvailable:/ { free = $2 * 1024 } /^[0-9]+$/ && $1 < free { free = $1 } END { print int(free / 2^30) }'
}

# How many compilers fit: one per core, but two gigabytes of free memory each. TITAN_JOBS overrides.
build_jobs() {
  local cores memory
  [ -z "${TITAN_JOBS:-}" ] || { printf '%s' "$TITAN_JOBS"; return; }
  cores=$(nproc)
  memory=$(($(free_gigabytes) / 2))
  [ "$memory" -ge 1 ] || memory=1
  printf '%s' $((cores < memory ? cores : memory))
}

# unpack_wheel PACKAGE==VERSION FOLDER: fetches a wheel from Python's package index and unpacks it. False when it could not;
# the message is on stderr. Callers ask for that, so that "set -e" ends nothing here.
unpack_wheel() {
  local wheels=$2/.wheels wheel quiet=(--quiet)
  [ ! -t 2 ] || quiet=()
  rm -rf "$wheels" # with what an earlier call could not use
  mkdir -p "$wheels" || return 1
  python3 -m pip "${quiet[@]}" --disable-pip-version-check --no-cache-dir download --no-deps --only-binary :all: \
    -d "$wheels" "$1" >&2 || return 1
  for wheel in "$wheels"/*.whl; do
    python3 -m zipfile -e "$wheel" "$2" || return 1
  done
  rm -rf "$wheels" || return 1
}

# few_jobs JOBS: why they are fewer than the cores, where memory is the reason.
few_jobs() {
  [ -z "${TITAN_JOBS:-}" ] && [ "$1" -lt "$(nproc)" ] || return 0
  printf 'Compiling takes longer here: %s at a time instead of %s, because %s GB of memory are free and each takes 2 (TITAN_JOBS=N overrides)' \
    "$1" "$(nproc)" "$(free_gigabytes)"
}

interrupted() {
  say ""
  say "Interrupted. The same command continues from here."
  exit 130
}

run_cmake() {
  cmake --preset release -S "$TITAN_ROOT" "$@" || fail 70 "the build could not be configured; CMake's message is above"
}

# libtorch_kind: what cmake/Cuda.cmake decides. If it decides otherwise, CMake fetches what is missing.
libtorch_kind() {
  local nvcc
  nvcc=$(PATH=$PATH${CUDA_HOME:+:$CUDA_HOME/bin}:/usr/local/cuda/bin command -v nvcc || true)
  if [ "${TITAN_CUDA:-AUTO}" != OFF ] && [ -n "$nvcc" ] && [[ $("$nvcc" --version) = *'release 13.'* ]]; then
    printf -- --cuda
  elif [ "${TITAN_CUDA:-AUTO}" = ON ]; then
    fail 70 "TITAN_CUDA=ON needs a CUDA 13 compiler: nvcc on PATH or in CUDA_HOME/bin; found: ${nvcc:-none}"
  else
    printf -- --cpu
  fi
}

# fetch_while_compiling: downloads LibTorch if necessary, and compiles at the same time what does not need it.
fetch_while_compiling() {
  local ninja kind status=0
  kind=$(libtorch_kind)
  run_cmake -DTITAN_TORCH=OFF -DTITAN_TESTS=OFF -DTITAN_PARQUET=OFF >/dev/null
  # In the background, since ninja stops at Ctrl-C there too, and pip would not.
  (cd "$TITAN_BUILD" && NINJA_STATUS=$ninja_state exec ninja -j "$(build_jobs)" titan_train) \
    > >(show_progress "Building what needs no LibTorch" >&2) 2>&1 &
  ninja=$!
  "$TITAN_ROOT/scripts/libtorch.sh" "$kind" >/dev/null || status=$?
  [ "$status" -eq 0 ] || kill -INT "$ninja" 2>/dev/null || true # it may have ended
  wait "$ninja" || [ "$status" -ne 0 ] || fail 70 "the build failed; the compiler's message is above"
  [ "$status" -eq 0 ] || exit "$status" # its message is above
}

# parquet_setting: TITAN_PARQUET, else what this checkout was built with last: a build that reads Parquet stays one.
parquet_setting() {
  local before
  before=$(sed -n 's/^TITAN_PARQUET:BOOL=//p' "$TITAN_BUILD/CMakeCache.txt" 2>/dev/null || true)
  printf '%s' "${TITAN_PARQUET:-${before:-OFF}}"
}

# configure_build: runs CMake when it has not run with these settings, or when the LibTorch it found is gone. Changed
# CMake files need nothing here: ninja notices them.
configure_build() {
  local settings recorded=$TITAN_BUILD/.configured-with site parquet
  parquet=$(parquet_setting)
  settings="libtorch=${TITAN_LIBTORCH:-} cuda=${TITAN_CUDA:-AUTO}${CUDAARCHS:+ for $CUDAARCHS} nvcc=$(command -v nvcc || true) parquet=$parquet"
  if [ -f "$TITAN_BUILD/build.ninja" ] && [ -f "$recorded" ] && [ "$(head -n 1 "$recorded")" = "$settings" ]; then
    site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$TITAN_BUILD/CMakeCache.txt")
    [ ! -e "$site/torch/lib/libtorch_cpu.so" ] || return 0
  fi
  mkdir -p "$TITAN_BUILD"
  rm -f "$recorded"
  fetch_while_compiling
  run_cmake -DTITAN_TORCH=ON -DTITAN_TESTS=ON -DTITAN_CUDA="${TITAN_CUDA:-AUTO}" -DTITAN_LIBTORCH="${TITAN_LIBTORCH:-}" \
    -DTITAN_PARQUET="$parquet" >&2
  printf '%s\n' "$settings" >"$recorded"
}

# What training needs here: what the program opens on a GPU is compiled where a driver is, or TITAN_CUDA=ON asks for it.
program_target() {
  if [ "${TITAN_CUDA:-AUTO}" = ON ] || [ -n "$(type -P nvidia-smi)" ] || /sbin/ldconfig -p 2>/dev/null | grep 'libcuda\.so\.1 ' >/dev/null; then
    printf titan_program
  else
    printf titan_train
  fi
}

# How ninja is to print its state for show_progress: steps done, of how many, seconds.
ninja_state='@ %f %t %e '

# time_left DONE LEFT SECONDS: ", about ... left" after DONE steps in SECONDS; nothing while that is too little.
time_left() {
  local seconds
  [ "$1" -gt 0 ] && [ "$2" -gt 0 ] && [ "$3" -ge 20 ] || return 0
  seconds=$(($3 * $2 / $1))
  if [ "$seconds" -lt 50 ]; then
    printf ', less than a minute left'
  else
    printf ', about %s min left' $(((seconds + 30) / 60))
  fi
}

# show_progress TEXT [NOTICE]: ninja's output, in which the state becomes one line that is rewritten, or away from a
# terminal a line every half minute, after NOTICE when there is much to do. Other lines, a compiler's, stay as they are.
# Steps of the first seconds tell nothing about the time left: most come from the compiler's cache.
show_progress() {
  local line mark finished total seconds text notice=${2:-} shown='' next=30 early_steps=0 early_seconds=0
  trap '' INT # ninja ends first, and the lines of its end are shown
  while IFS= read -r line; do
    read -r mark finished total seconds _ <<<"$line"
    if [ "$mark" != @ ]; then
      case $line in *'no work to do.') continue ;; esac
      printf '%s%s\n' "${shown:+$'\r\e[K'}" "$line"
      continue
    fi
    seconds=${seconds%.*}
    if [ -n "$notice" ] && [ "$total" -ge 10 ]; then
      printf '%s\n' "$notice"
      notice=''
    fi
    [ "$seconds" -ge 10 ] || early_steps=$finished early_seconds=$seconds
    text="$1: $finished of $total steps"
    text+=$(time_left $((finished - early_steps)) $((total - finished)) $((seconds - early_seconds)))
    if [ -t 1 ]; then
      shown=yes
      printf '\r\e[K%s' "$text"
    elif [ "$seconds" -ge "$next" ]; then
      next=$((seconds + 30))
      printf '%s\n' "$text"
    fi
  done
  printf '%s' "${shown:+$'\r\e[K'}"
}

# build_targets TARGET...: configures if needed, then builds; a build with nothing to do takes a fraction of a second.
build_targets() {
  local status=0 jobs
  trap interrupted INT
  configure_build
  jobs=$(build_jobs)
  (cd "$TITAN_BUILD" && NINJA_STATUS=$ninja_state exec ninja -j "$jobs" "$@") 2>&1 | show_progress Building "$(few_jobs "$jobs")" >&2 || status=$?
  [ "$status" -eq 0 ] || fail 70 "the build failed; the compiler's message is above"
  trap 'exit 130' INT
}
