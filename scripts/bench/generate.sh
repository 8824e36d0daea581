#!/usr/bin/env bash
# Benchmark of generation, as ratios from one run: with and without the cache, and to Python's transformers.
#   scripts/bench/generate.sh [--pairs 7] [--tokens 16] [--only TEXT] [--check]
# TITAN_TEST_PYTHON names the Python with the packages; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets titan_train
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/generate.py" --binary "$TITAN_BUILD/titan_train" "$@"
