#!/usr/bin/env bash
# The form of scripts and sources, where the tools for it are installed: they are no part of the set-up.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

shell_scripts() {
  cd "$checkout"
  shellcheck -x -P scripts -P scripts/gpu -P tests/scripts scripts/*.sh scripts/*/*.sh scripts/titan.sbatch \
    tests/scripts/*.sh cmake/*.sh .ci/run
}

formatted() {
  "$checkout/scripts/format.sh" --check
}

tidy() {
  "$checkout/scripts/format.sh" --tidy
}

layouts_in_step() {
  python3 "$checkout/tests/train/make_layouts.py" --check
}

same_draw() {
  local draw=$checkout/scripts/draw_comments.py
  [ "$(python3 "$draw" --seed 7)" = "$(python3 "$draw" --seed 7)" ]
  [ "$(python3 "$draw" --seed 7)" != "$(python3 "$draw" --seed 8)" ]
  python3 "$draw" --count 3 src/base | grep -q '^3 of [0-9]* comments$'
}

check "draw_comments.py draws the same comments with the same seed" same_draw
check "the layouts under test are those that make_layouts.py writes" layouts_in_step
if command -v shellcheck >/dev/null; then
  check "shellcheck has nothing to say about the scripts" shell_scripts
else
  skip "shellcheck has nothing to say about the scripts" "shellcheck is not installed"
fi
# Versions of clang-format differ in small ways; the project's is Debian 12's.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  check "every C++ source is formatted" formatted
else
  skip "every C++ source is formatted" "clang-format 14 is not installed"
fi
# A quarter of an hour on two cores.
if [ -n "${TITAN_TEST_FULL:-}" ]; then
  if clang-tidy --version 2>/dev/null | grep -q 'version 14\.'; then
    check "clang-tidy has nothing to say about the sources" tidy
  else
    skip "clang-tidy has nothing to say about the sources" "clang-tidy 14 is not installed"
  fi
fi
finish
