#!/usr/bin/env bash
# Benchmark of runs on several CPU ranks: ratios to one process and to Python's fully_shard over Gloo, from one run;
# method: docs/benchmarks/README.md
#   scripts/bench/distributed_cpu.sh [--pairs 7] [--rows NAME,...] [--quick] [--check] [--binary FILE]
# TITAN_TEST_PYTHON names the Python with torch 2.11.0; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/distributed_cpu.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
