#!/usr/bin/env bash
# Trains for an hour under `titan_train launch --restarts` while something fails every minute, and sees that no bit of the
# result differs from that of an undisturbed run and that memory does not grow:
#   scripts/soak.sh [--minutes 60] [--every 60] [--faults N] [--kinds kill,stop,…] [--ranks 4] [--folder outputs/soak]
#                   [--seed S] [--option=--KEY=VALUE]... [--binary FILE]
# A fault is one of: a rank is killed; a rank is stopped; SIGTERM; the disk of the checkpoints is full (as root, who may
# mount a small one); a bit of a weight or moment of one replica is flipped, or a layer computes a NaN (both made by
# dying_titan_train, tests/behaviour/dying_main.cpp: titan_train with faults; not with --binary titan_train). Where a
# fault ends the supervisor by design, its cause is removed and the same command given again. Every fault is a line of
# record.jsonl in the folder; table.md is what docs/benchmarks/reliability.md shows. The undisturbed run at the end takes
# up to as long again.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets dying_titan_train ;;
esac
exec python3 "$TITAN_ROOT/scripts/soak.py" --default-binary "$TITAN_BUILD/dying_titan_train" "$@"
