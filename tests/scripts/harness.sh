# Sourced by the checks of the scripts. `check SENTENCE FUNCTION` runs FUNCTION in an empty folder of its own ($scratch)
# and prints "ok SENTENCE" or "not ok SENTENCE" with what it printed; scripts/test.sh counts these lines.
# shellcheck shell=bash
set -uo pipefail
# shellcheck disable=SC2034  # for the checks
checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
all_scratch=$(mktemp -d)
trap 'rm -rf "$all_scratch"' EXIT
failures=0

check() {
  scratch=$(mktemp -d "$all_scratch/a folder XXXX")
  # Not as the condition of an if: there bash would ignore set -e.
  (set -e; cd "$scratch"; "$2") >"$scratch.log" 2>&1
  # shellcheck disable=SC2181
  if [ $? -eq 0 ]; then
    printf 'ok %s\n' "$1"
  else
    printf 'not ok %s\n' "$1"
    sed 's/^/    /' "$scratch.log"
    failures=$((failures + 1))
  fi
}

skip() { printf 'skipped %s: %s\n' "$1" "$2"; }

# expect STATUS COMMAND...: runs it, keeps what it printed in $printed, fails when it ends with another status.
expect() {
  local wanted=$1 status=0
  shift
  printed=$("$@" 2>&1) || status=$?
  [ "$status" -eq "$wanted" ] || { echo "exit $status instead of $wanted from: $*"; echo "$printed"; return 1; }
}

# expect_text TEXT: $printed holds it.
expect_text() {
  case $printed in
    *"$1"*) ;;
    *) echo "not printed: $1"; echo "what was printed:"; echo "$printed"; return 1 ;;
  esac
}

# expect_equal WANTED GOT
expect_equal() {
  [ "$1" = "$2" ] || { echo "wanted: $1"; echo "got:    $2"; return 1; }
}

# expect_interrupted FILE COMMAND...: COMMAND and what it started receive what Ctrl-C sends as soon as FILE is there, and it
# ends with 130. Keeps what it printed in $printed.
expect_interrupted() {
  local file=$1 started status=0
  shift
  setsid env --default-signal=INT "$@" >interrupted.log 2>&1 &
  started=$!
  until [ -e "$file" ] || ! kill -0 "$started"; do sleep 0.01; done
  kill -INT -- "-$started" || true
  wait "$started" || status=$?
  printed=$(cat interrupted.log)
  [ "$status" -eq 130 ] || { echo "exit $status instead of 130 from: $*"; echo "$printed"; return 1; }
}

# program NAME: makes an executable of that name in ./bin from standard input.
program() {
  mkdir -p bin
  { echo '#!/bin/sh'; cat; } >"bin/$1"
  chmod +x "bin/$1"
}

finish() { [ "$failures" -eq 0 ]; }
