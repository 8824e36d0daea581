#!/usr/bin/env bash
# tests/mutations: the faults apply to today's sources, and run.py says what the tests of a part make of one.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

faults_apply() {
  python3 "$checkout/tests/mutations/run.py" --check
}

# small_checkout OLD...: a checkout of one source, whose test is a grep, with a fault for each OLD that replaces it.
small_checkout() {
  git init --quiet .
  mkdir -p tests/mutations scripts src
  cp "$checkout/tests/mutations/run.py" tests/mutations/
  echo /build/ >.gitignore
  echo 'a - b and c + d' >src/sum.cpp
  cat >scripts/test.sh <<'SH'
#!/bin/sh
case $(cat "$(dirname "$0")/../src/sum.cpp") in
  *fault*) [ "$1" = stops ] && exit 70; echo "[  FAILED  ] Sum.IsTheSum (0 ms)"; exit 1 ;;
  *) echo "1 passed, 0 failed" ;;
esac
SH
  chmod +x scripts/test.sh
  local old part
  for old in "$@"; do
    part=${old%%:*}
    printf '[[fault]]\nname = "%s"\npart = "%s"\nwhat = "What."\nfile = "src/sum.cpp"\nold = "%s"\nnew = "%s"\n' \
      "$old" "$part" "${old#*:}" "$([ "$part" = missed ] && echo other || echo fault)"
  done >tests/mutations/faults.toml
}

caught_and_missed_faults_are_told() {
  small_checkout 'caught:c + d' 'missed:c + d'
  expect 1 python3 tests/mutations/run.py
  expect_text "| caught | What. | \`Sum.IsTheSum\` | 0 |"
  expect_text '| missed | What. | **not caught** | 0 |'
  expect_text '1 of 2 faults were caught'
  expect 0 python3 tests/mutations/run.py caught
  expect_equal 'a - b and c + d' "$(cat src/sum.cpp)"
}

interrupted_run_leaves_nothing() {
  small_checkout 'caught:c + d'
  mkdir -p build/mutations/checkout/src
  echo fault >build/mutations/checkout/src/sum.cpp
  echo fault >build/mutations/checkout/src/gone.cpp
  expect 0 python3 tests/mutations/run.py
  expect_equal 'a - b and c + d' "$(cat build/mutations/checkout/src/sum.cpp)"
  [ ! -e build/mutations/checkout/src/gone.cpp ]
}

faults_that_say_nothing_are_refused() {
  small_checkout 'caught:no such text'
  expect 70 python3 tests/mutations/run.py --check
  expect_text 'occurs 0 times in src/sum.cpp'
  small_checkout 'caught: '
  expect 70 python3 tests/mutations/run.py --check
  expect_text 'occurs 6 times in src/sum.cpp'
  small_checkout 'stops:c + d'
  expect 70 python3 tests/mutations/run.py
  expect_text 'the tests of stops could not be built or run'
  small_checkout 'caught:c + d'
  echo fault >src/sum.cpp
  echo 'c + d' >>src/sum.cpp
  expect 70 python3 tests/mutations/run.py
  expect_text 'without a fault, the tests of caught do not all pass'
}

check "every fault of tests/mutations applies to today's sources" faults_apply
check "a fault that the tests catch, and one that they miss, are told" caught_and_missed_faults_are_told
check "what an interrupted run leaves in its copy is undone" interrupted_run_leaves_nothing
check "a fault that shows nothing about the tests is refused" faults_that_say_nothing_are_refused
finish
