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

# How many compilers fit: one per core, but two gigabytes of free memory each. TITAN_JOBS overrides.
build_jobs() {
  local cores memory
  [ -z "${TITAN_JOBS:-}" ] || { printf '%s' "$TITAN_JOBS"; return; }
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
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

# configure_build: runs CMake when it has not run with these settings, or when the LibTorch it found is gone. Changed
# CMake files need nothing here: ninja notices them.
configure_build() {
  local settings recorded=$TITAN_BUILD/.configured-with site
  settings="libtorch=${TITAN_LIBTORCH:-} cuda=${TITAN_CUDA:-AUTO}${CUDAARCHS:+ for $CUDAARCHS} nvcc=$(command -v nvcc || true)"
  if [ -f "$TITAN_BUILD/build.ninja" ] && [ -f "$recorded" ] && [ "$(head -n 1 "$recorded")" = "$settings" ]; then
    site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$TITAN_BUILD/CMakeCache.txt")
    [ ! -e "$site/torch/lib/libtorch_cpu.so" ] || return 0
  fi
  mkdir -p "$TITAN_BUILD"
  rm -f "$recorded"
  cmake --preset release -S "$TITAN_ROOT" -DTITAN_CUDA="${TITAN_CUDA:-AUTO}" \
    -DTITAN_LIBTORCH="${TITAN_LIBTORCH:-}" >&2 ||
    fail 70 "the build could not be configured; CMake's message is above"
  printf '%s\n' "$settings" >"$recorded"
}

# What training needs here: what the program opens on a GPU is compiled where a driver is, or TITAN_CUDA=ON asks for it.
program_target() {
  if [ "${TITAN_CUDA:-AUTO}" = ON ] || [ -n "$(type -P nvidia-smi)" ] || /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    printf titan_program
  else
    printf titan_train
  fi
}

# build_targets TARGET...: configures if needed, then builds; a build with nothing to do takes a fraction of a second.
build_targets() {
  configure_build
  local status=0
  if [ -t 2 ]; then
    (cd "$TITAN_BUILD" && ninja -j "$(build_jobs)" "$@") >&2 || status=$?
  else
    (cd "$TITAN_BUILD" && ninja -j "$(build_jobs)" "$@" | sed -u '/no work to do/d') >&2 || status=$?
  fi
  [ "$status" -eq 0 ] || fail 70 "the build failed; the compiler's message is above"
}
