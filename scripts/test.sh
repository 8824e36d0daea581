#!/usr/bin/env bash
# Runs every test: installs what is missing, builds, then runs the C++ tests, the comparisons with Python and the checks
# of the scripts. The last line is "N passed, N failed"; the exit code is 1 when anything failed.
#   scripts/test.sh            what every change must pass
#   scripts/test.sh --full     also what takes too long for that (the tests see TITAN_TEST_FULL=1)
#   scripts/test.sh --update-support    what every change must pass; docs/support.md is written instead of checked
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly results=$TITAN_BUILD/test-results
passed=0 failed=0 skipped=0

section() { say ""; say "== $*"; }

# count PASSED FAILED SKIPPED STATUS: adds to the totals; a command that failed without naming a failure counts as one.
count() {
  [ "$4" -eq 0 ] || [ "$2" -gt 0 ] || set -- "$1" 1 "$3" "$4"
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

lines() { grep -c "$1" "$2" || true; }

run_unit_tests() {
  section "C++ tests"
  local status=0 numbers
  rm -rf "$results"
  mkdir -p "$results"
  GTEST_OUTPUT="json:$results/" ctest --test-dir "$TITAN_BUILD" --output-on-failure --no-tests=error --timeout 1200 \
    --parallel "$(nproc)" --output-junit "$results/ctest.xml" </dev/null || status=$?
  numbers=$(python3 "$TITAN_ROOT/scripts/count_tests.py" "$results") || numbers='0 0 0'
  # shellcheck disable=SC2086  # three numbers
  count $numbers "$status"
}

run_reference_tests() {
  section "Comparisons with Python"
  local status=0 python line log=$results/reference.log
  if ! python=$("$TITAN_ROOT/scripts/test_python.sh"); then
    count 0 1 0 0
    return
  fi
  TITAN_BINARY=$TITAN_BUILD/titan_train TITAN_TEST_PYTHON=$python \
    "$python" "$TITAN_ROOT/tests/reference/run_all.py" --results "$results/python.json" </dev/null 2>&1 | tee "$log" || status=$?
  line=$(grep -oE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$log" | tail -n 1)
  [ -n "$line" ] || line='0 passed, 1 failed'
  # shellcheck disable=SC2046  # two or three numbers
  set -- $(tr -cs '0-9' ' ' <<<"$line")
  count "$1" "$2" "${3:-0}" "$status"
}

run_script_checks() {
  section "Scripts"
  local check status log
  for check in "$TITAN_ROOT"/tests/scripts/*_test.sh; do
    status=0
    log=$results/$(basename "$check" .sh).log
    bash "$check" </dev/null 2>&1 | tee "$log" || status=$?
    count "$(lines '^ok ' "$log")" "$(lines '^not ok ' "$log")" "$(lines '^skipped ' "$log")" "$status"
  done
}

# docs/support.md against what the tests above have shown.
check_support() {
  section "Support matrix"
  local status=0 log=$results/support.log
  # shellcheck disable=SC2086  # a word or none
  python3 "$TITAN_ROOT/scripts/support_matrix.py" "$results" $support_argument 2>&1 |
    tee "$log" || status=$?
  count "$(lines '^ok ' "$log")" "$(lines '^not ok ' "$log")" 0 "$status"
}

support_argument=
case ${1:-} in
  '') ;;
  --full) export TITAN_TEST_FULL=1 ;;
  --update-support) support_argument=--write ;;
  *) fail 64 "unknown argument $1 (there are --full and --update-support)" ;;
esac
section "Set-up and build"
"$TITAN_ROOT/scripts/setup.sh"
build_targets all
run_unit_tests
run_reference_tests
run_script_checks
check_support

section "Result"
if [ ! -d "$TITAN_ROOT/../shared" ]; then
  say "left out: what compares with the data in ../shared, which is not there"
fi
[ -n "${TITAN_TEST_FULL:-}" ] || say "left out: the long tests (scripts/test.sh --full)"
[ "$skipped" -eq 0 ] || say "$skipped skipped; each says why above"
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
