#!/usr/bin/env bash
# Loss of the debug model with weights and optimizer states in bfloat16 against float32; docs/benchmarks/bf16_states.md
#   scripts/bench/bf16_states.sh [--steps 2000] [--seeds 42 7] [--threads 1] [--check] [--binary FILE]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
exec python3 "$TITAN_ROOT/scripts/bench/bf16_states.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
