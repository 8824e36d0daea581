#!/usr/bin/env bash
# Corpora: `titan_train data tokenize`, the .bin loader and their memory; method: docs/benchmarks/README.md
#   scripts/bench/data_sources.sh [--pairs 7] [--quick] [--check]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets titan_train bench_token_loader
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/data_sources.py" --binary "$TITAN_BUILD/titan_train" "$@"
