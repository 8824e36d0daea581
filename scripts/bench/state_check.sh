#!/usr/bin/env bash
# What checks of weights and moments cost; docs/benchmarks/reliability.md
#   scripts/bench/state_check.sh [--steps 20] [--check] [--binary FILE]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in *" --binary"*) ;; *) build_targets titan_train && set -- --binary "$TITAN_BUILD/titan_train" "$@" ;; esac
exec python3 "$TITAN_ROOT/scripts/bench/state_check.py" "$@"
