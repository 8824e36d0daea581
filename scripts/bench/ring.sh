#!/usr/bin/env bash
# Ring attention of two ranks against one process on the same threads; method: docs/benchmarks/README.md
#   scripts/bench/ring.sh [--pairs 7] [--quick] [--check]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets bench_ring_attention
exec python3 "$TITAN_ROOT/scripts/bench/ring.py" --binary "$TITAN_BUILD/bench_ring_attention" "$@"
