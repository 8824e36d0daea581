#!/usr/bin/env bash
# Runs every test: installs what is missing, builds, then runs the C++ tests, the comparisons with Python and the checks
# of the scripts. The last line is "N passed, N failed"; the exit code is 1 when anything failed.
#   scripts/test.sh            what every change must pass
#   scripts/test.sh --full     also what takes too long for that (the tests see TITAN_TEST_FULL=1), and the C++ tests of
#                              operations and training with kernels of older processors
#   scripts/test.sh --update-support    what every change must pass; docs/support.md is written instead of checked
#   scripts/test.sh PART       while working: builds and runs the C++ tests of one folder of tests/, or the Python tests
#                              whose file or name has PART in it (pytest's -k); --full PART adds the long ones
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

results=$TITAN_BUILD/test-results
passed=0 failed=0 skipped=0

section() { say ""; say "== $*"; }

# count PASSED FAILED SKIPPED STATUS: adds to the totals; a command that failed without naming a failure counts as one.
count() {
  [ "$4" -eq 0 ] || [ "$2" -gt 0 ] || set -- "$1" 1 "$3" "$4"
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

lines() { grep -c "$1" "$2" || true; }

# run_unit_tests REPORTS SELECTION [ARGUMENT...]: the programs that ctest's SELECTION (words) means, in env's ARGUMENTs.
run_unit_tests() {
  local reports=$1 selection=$2 status=0 numbers
  shift 2
  rm -rf "$reports"
  mkdir -p "$reports"
  # shellcheck disable=SC2086  # words
  env "$@" GTEST_OUTPUT="json:$reports/" ctest --test-dir "$TITAN_BUILD" $selection --output-on-failure \
    --no-tests=error --timeout 1200 --parallel "$(($(nproc) + 1))" --output-junit "$reports/ctest.xml" </dev/null || status=$?
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
    run_unit_tests "$TITAN_BUILD/test-results-$onednn" "--label-regex ^(ops|optimize|parallel|train)$" \
      -u TITAN_TEST_FULL "ONEDNN_MAX_CPU_ISA=$onednn" "ATEN_CPU_CAPABILITY=$aten"
  done <<<$'AVX512_CORE avx2\nSSE41 default'
}

# run_python_tests [WORD...]: what pytest's WORDs select; all without. Tests that measure time or fill the machine are
# marked "alone" and run after the others, one by one.
run_python_tests() {
  section "Python tests"
  local status python group report words
  if ! python=$("$TITAN_ROOT/scripts/test_python.sh"); then
    count 0 1 0 0
    return
  fi
  for group in 'not alone' alone; do
    report=$results/python-${group// /-}.xml
    words=(-n "$(($(nproc) + 1))" --dist worksteal) # tests of ranks that fail wait most of the time
    [ "$group" != alone ] || words=()
    status=0
    TITAN_BINARY=$TITAN_BUILD/titan_train TITAN_TEST_PYTHON=$python "$python" -m pytest -c "$TITAN_ROOT/tests/pytest.ini" \
      "${words[@]}" -m "$group$python_left_out" -rsfE --junitxml="$report" "$@" </dev/null || status=$?
    [ "$status" -ne 5 ] || status=0 # none of this group
    # shellcheck disable=SC2046  # three numbers
    count $(python3 "$TITAN_ROOT/scripts/count_tests.py" "$report" || echo 0 0 0) "$status"
  done
}

run_script_checks() {
  section "Scripts"
  local check log checks=()
  for check in "$TITAN_ROOT"/tests/scripts/*_test.sh; do
    [ -z "${TITAN_TEST_FULL:-}" ] && grep -q '^# With --full only' "$check" || checks+=("$check")
  done
  # As many at a time as there are cores, the output of each in one piece.
  # shellcheck disable=SC2016  # expanded by the inner shell
  printf '%s\0' "${checks[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c '
    log=$0/$(basename "$1" .sh).log
    env --default-signal=INT bash "$1" </dev/null >"$log" 2>&1  # a shell cannot trap what its parent ignores
    echo $? >"$log.status"
    cat "$log"' "$results"
  for check in "${checks[@]}"; do
    log=$results/$(basename "$check" .sh).log
    count "$(lines '^ok ' "$log")" "$(lines '^not ok ' "$log")" "$(lines '^skipped ' "$log")" "$(cat "$log.status")"
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

# run_part PART: a folder of C++ tests, or else what pytest finds by the name in the Python ones.
run_part() {
  results=$TITAN_BUILD/test-results-part
  rm -rf "$results"
  if compgen -G "$TITAN_ROOT/tests/$1/*_test.cpp" >/dev/null; then
    build_targets "$1_tests"
    run_unit_tests "$results" "$unit_tests --label-regex ^$1\$"
  else
    mkdir -p "$results"
    build_targets python_tests
    run_python_tests -k "$1"
  fi
}

run_all() {
  build_targets all
  section "C++ tests"
  run_unit_tests "$results" "$unit_tests"
  [ -z "${TITAN_TEST_FULL:-}" ] || run_older_processors
  run_python_tests
  run_script_checks
  check_support
}

support_argument='' part='' unit_tests='--exclude-regex kernels_checked' python_left_out=' and not full'
if [ "${1:-}" = --full ]; then
  export TITAN_TEST_FULL=1 TITAN_FUZZ_SECONDS=60
  unit_tests='' python_left_out=''
  shift
fi
case ${1:-} in
  '') ;;
  --update-support) support_argument=--write ;;
  -*) fail 64 "unknown argument $1 (there are --full, --update-support and the name of a part)" ;;
  *) part=$1 ;;
esac
section "Set-up and build"
"$TITAN_ROOT/scripts/setup.sh"
export TITAN_PARQUET=ON # what scripts/setup.sh --parquet builds
if [ -n "$part" ]; then run_part "$part"; else run_all; fi

section "Slowest tests"
python3 "$TITAN_ROOT/scripts/slowest_tests.py" "$results" >&2 || true
section "Result"
if [ ! -d "$TITAN_ROOT/../shared" ] && [ -z "$part" ]; then
  say "left out: what compares with the data in ../shared, which is not there"
fi
[ -n "$part" ] || command -v chromium chromium-browser google-chrome >/dev/null ||
  say "left out: how report.html is drawn (tests/behaviour/page_drawn_test.py), since there is no Chromium"
[ -n "${TITAN_TEST_FULL:-}$part" ] || say "left out: the long tests (scripts/test.sh --full)"
[ "$skipped" -eq 0 ] || say "$skipped skipped; each says why above"
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
