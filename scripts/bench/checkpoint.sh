#!/usr/bin/env bash
# Benchmark of checkpoints: ratios to dd, to Python's torch.distributed.checkpoint and of modes to each other, from one
# run; method: docs/benchmarks/README.md
#   scripts/bench/checkpoint.sh [--pairs 7] [--rows NAME,...] [--disk FOLDER] [--memory FOLDER] [--quick] [--check]
#                               [--binary FILE]
# TITAN_TEST_PYTHON names the Python with torch 2.11.0; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets bench_checkpoint ;;
esac
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/checkpoint.py" --default-binary "$TITAN_BUILD/bench_checkpoint" "$@"
