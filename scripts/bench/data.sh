#!/usr/bin/env bash
# Benchmark of what goes in, as ratios to the Python packages from one run: tokenizers, then sources and files.
#   scripts/bench/data.sh [--pairs 7] [--check]
# TITAN_TEST_PYTHON names the Python with the packages; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets titan_train
python=$("$TITAN_ROOT/scripts/test_python.sh")
status=0
"$python" "$TITAN_ROOT/scripts/bench/tokenizer_speed.py" --binary "$TITAN_BUILD/titan_train" "$@" || status=$?
"$TITAN_ROOT/scripts/bench/data_sources.sh" "$@" || status=$?
exit "$status"
