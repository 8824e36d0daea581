#!/usr/bin/env bash
# Keeps the C++ sources in the project's form (clang-format and clang-tidy 14 or newer, packages of that name).
#   scripts/format.sh                  formats every source
#   scripts/format.sh --check          names the ones that are not formatted; exit 1 when there are any
#   scripts/format.sh --tidy [FILE]... clang-tidy over the files, or over all of src: a quarter of a minute for each that
#                                      includes torch; exit 1 when it finds anything (.clang-tidy says what it looks for)
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

require_tool() {
  command -v "$1" >/dev/null || fail 69 "$1 is not installed" "Run: sudo apt-get install $1"
}

sources() {
  find "$TITAN_ROOT/include" "$TITAN_ROOT/src" "$TITAN_ROOT/tests" -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort
}

# clang-tidy needs the commands of a build of single files without gcc's precompiled header, which clang cannot read.
tidy() {
  local build=$TITAN_ROOT/build/tidy
  require_tool clang-tidy
  "$TITAN_ROOT/scripts/setup.sh"
  cmake -S "$TITAN_ROOT" -B "$build" -G Ninja -DTITAN_CUDA=OFF -DTITAN_LIBTORCH="${TITAN_LIBTORCH:-}" \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DTITAN_UNITY=OFF >/dev/null
  if [ $# -eq 0 ]; then
    mapfile -t files < <(sources | grep '/src/.*\.cpp$')
    set -- "${files[@]}"
  fi
  # Its standard error counts what it found in other people's headers.
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(build_jobs)" clang-tidy -p "$build" --quiet \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument \
    2> >(grep -v '^[0-9]* warnings\? generated\.$' >&2) || fail 1 "clang-tidy found what is listed above"
}

case ${1:-} in
  '')
    require_tool clang-format
    sources | xargs -d '\n' clang-format -i
    ;;
  --check)
    require_tool clang-format
    sources | xargs -d '\n' clang-format --dry-run --Werror
    ;;
  --tidy)
    shift
    tidy "$@"
    ;;
  *) fail 64 "unknown argument $1 (--check or --tidy)" ;;
esac
