#!/usr/bin/env bash
# Reading Parquet: `titan_train data stats` against `datasets` streaming; method: docs/benchmarks/README.md
#   scripts/bench/parquet.sh [--pairs 7] [--quick] [--check]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

export TITAN_PARQUET=ON
build_targets titan_train
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/parquet.py" --binary "$TITAN_BUILD/titan_train" "$@"
