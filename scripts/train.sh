#!/usr/bin/env bash
# Trains: installs what is missing, builds, starts titan_train. The first run takes minutes, later ones start at once.
#   scripts/train.sh                                            the debug model on generated text
#   scripts/train.sh CONFIG.toml [--section.key VALUE]...       any config; arguments go to titan_train as they are
# CONFIG_FILE names the config when no argument does. A config that is not found from the current folder is taken from
# the checkout, and then titan_train runs in the checkout: relative paths, those of the outputs too, start there.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# Some launchers of other trainers set these two; one process is what this script starts.
[ "${NGPU:-1}" = 1 ] || fail 64 "NGPU=$NGPU: this script starts one process" \
  "Several need a launcher, which is no part of titan yet. Unset NGPU or set it to 1."
[ "${LOG_RANK:-0}" = 0 ] || say "LOG_RANK=$LOG_RANK has no effect here: there is one process, and it prints"

names_config=no
for argument in "$@"; do
  case $argument in --job.config_file* | --job.config-file*) names_config=yes ;; esac
done
config=
case ${1:-} in
  '' | -*) [ "$names_config" = yes ] || config=${CONFIG_FILE:-configs/debug_model.toml} ;;
  *)
    config=$1
    shift
    ;;
esac
[ -z "$config" ] || set -- "$config" "$@"

"$TITAN_ROOT/scripts/setup.sh"
build_targets titan_train
if [ -n "$config" ] && [ ! -e "$config" ] && [ -e "$TITAN_ROOT/$config" ]; then
  cd -- "$TITAN_ROOT"
fi
exec "$TITAN_BUILD/titan_train" "$@"
