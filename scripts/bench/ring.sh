#!/usr/bin/env bash
# Ring attention of two ranks against one process on the same threads; method: docs/benchmarks/README.md
#   scripts/bench/ring.sh [--pairs 7] [--rows NAME,...] [--quick] [--check] [--record] [--binary FILE]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets bench_ring_attention ;;
esac
exec python3 "$TITAN_ROOT/scripts/bench/ring.py" --default-binary "$TITAN_BUILD/bench_ring_attention" "$@"
