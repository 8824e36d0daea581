#!/usr/bin/env bash
# CPU benchmark: ratios between titan_train and PyTorch, eager and compiled, from one run; method: docs/benchmarks/README.md
#   scripts/bench/cpu.sh [--pairs 7] [--rows NAME,...] [--quick] [--check] [--record] [--binary FILE]
# TITAN_TEST_PYTHON names the Python with torch 2.11.0; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/cpu.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
