#!/usr/bin/env bash
# Is this build slower, or does it need more memory, than another? Ratios of training steps from one run;
# method: docs/benchmarks/README.md
#   scripts/bench/against.sh OTHER_TITAN_TRAIN [--pairs 7] [--rows NAME,...] [--quick] [--check] [--binary FILE]
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
exec python3 "$TITAN_ROOT/scripts/bench/against.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
