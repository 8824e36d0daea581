#!/usr/bin/env bash
# A pipeline of two ranks against one process on the same two threads; method: docs/benchmarks/README.md
#   scripts/bench/pipeline.sh [--pairs 7] [--rows NAME,...] [--quick] [--check] [--binary FILE]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
exec python3 "$TITAN_ROOT/scripts/bench/pipeline.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
