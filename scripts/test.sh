#!/usr/bin/env bash
# Runs every test: installs what is missing, builds, then runs the C++ tests, the comparisons with Python and the checks
# of the scripts. The last line is "N passed, N failed"; the exit code is 1 when anything failed.
#   scripts/test.sh            what every change must pass
#   scripts/test.sh --full     also what takes too long for that (the tests see TITAN_TEST_FULL=1), and the C++ tests of
#                              operations and training with kernels of older processors
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

# run_unit_tests REPORTS PROGRAMS [ARGUMENT...]: the programs that fit an expression, in env's ARGUMENTs.
run_unit_tests() {
  local reports=$1 programs=$2 status=0 numbers
  shift 2
  rm -rf "$reports"
  mkdir -p "$reports"
  env "$@" GTEST_OUTPUT="json:$reports/" ctest --test-dir "$TITAN_BUILD" --tests-regex "$programs" --output-on-failure \
    --no-tests=error --timeout 1200 --parallel "$(nproc)" --output-junit "$reports/ctest.xml" </dev/null || status=$?
  numbers=$(python3 "$TITAN_ROOT/scripts/count_tests.py" "$reports") || numbers='0 0 0'
  # shellcheck disable=SC2086  # three numbers
  count $numbers "$status"
}

# Tests that count bytes or compare bits must pass whichever kernels oneDNN and ATen choose for the processor. The first
# pair limits processors with AVX-512 units for bf16, the second one every x86-64 processor.
run_older_processors() {
  local onednn aten
  while read -r onednn aten; do
    section "C++ tests with oneDNN limited to $onednn and ATen to $aten"
    run_unit_tests "$TITAN_BUILD/test-results-$onednn" '^(ops|optimize|parallel|train|train_rest)$' \
      -u TITAN_TEST_FULL "ONEDNN_MAX_CPU_ISA=$onednn" "ATEN_CPU_CAPABILITY=$aten"
  done <<<$'AVX512_CORE avx2\nSSE41 default'
}

# Tests that measure time or fill the machine are marked "alone" and run after the others, one by one.
run_python_tests() {
  section "Comparisons with Python"
  local status python group report words
  if ! python=$("$TITAN_ROOT/scripts/test_python.sh"); then
    count 0 1 0 0
    return
  fi
  for group in 'not alone' alone; do
    report=$results/python-${group// /-}.xml
    words=(-n "$(nproc)" --dist worksteal)
    [ "$group" != alone ] || words=()
    status=0
    TITAN_BINARY=$TITAN_BUILD/titan_train TITAN_TEST_PYTHON=$python "$python" -m pytest -c "$TITAN_ROOT/tests/pytest.ini" \
      "${words[@]}" -m "$group" -rsfE --durations=15 --junitxml="$report" </dev/null || status=$?
    # shellcheck disable=SC2046  # three numbers
    count $(python3 "$TITAN_ROOT/scripts/count_tests.py" "$report" || echo 0 0 0) "$status"
  done
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
  --full) export TITAN_TEST_FULL=1 TITAN_FUZZ_SECONDS=60 ;;
  --update-support) support_argument=--write ;;
  *) fail 64 "unknown argument $1 (there are --full and --update-support)" ;;
esac
section "Set-up and build"
"$TITAN_ROOT/scripts/setup.sh"
build_targets all
section "C++ tests"
run_unit_tests "$results" .
[ -z "${TITAN_TEST_FULL:-}" ] || run_older_processors
run_python_tests
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
