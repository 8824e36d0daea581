#!/usr/bin/env bash
# Kills a training run N times and sees that it never loses more than the steps since its last checkpoint, and no bit of
# what it would have computed undisturbed:
#   scripts/chaos.sh N [--folder outputs/chaos] [--seed S] [--option=--KEY=VALUE]... [--binary FILE]
# A random rank gets SIGKILL at a random moment, at least every second time while a checkpoint is being written; then the
# same command is given again. Every kill is a line of record.jsonl in the folder; called again, the script resumes
# where that ends, up to N. At the end the run's losses and its last checkpoint are compared with those of an undisturbed run.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

case " $* " in
  *' --binary'* | *' --help '* | *' -h '*) ;;
  *) build_targets titan_train ;;
esac
exec python3 "$TITAN_ROOT/scripts/chaos.py" --default-binary "$TITAN_BUILD/titan_train" "$@"
