#!/usr/bin/env bash
# Trains: installs what is missing, builds, starts titan_train. The first run takes minutes, later ones start at once.
#   scripts/train.sh                                            the debug model on short stories
#   scripts/train.sh CONFIG.toml [--section.key VALUE]...       any config; arguments go to titan_train as they are
# CONFIG_FILE names the config when no argument does. A config that is not found from the current folder is taken from
# the checkout, and then titan_train runs in the checkout: relative paths, those of the outputs too, start there.
#   NGPU=4 LOG_RANK=0 CONFIG_FILE=... scripts/train.sh          four processes on this machine; LOG_RANK: whose log is shown
#   NGPU=32 COMM_MODE=fake_backend scripts/train.sh             one step of one rank of 32, alone, without communication
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

ranks=${NGPU:-1}
case $ranks in
  '' | *[!0-9]* | 0*) fail 64 "NGPU=$ranks is not a number of processes" "Unset it, or give a number from 1 on." ;;
esac
names_config=no
for argument in "$@"; do
  case $argument in --job.config_file* | --job.config-file*) names_config=yes ;; esac
done
config=
case ${1:-} in
  '' | -*)
    case "${CONFIG_FILE:-none} ${MODULE:-} ${CONFIG:-}" in
      none\ *llama*) fail 64 "MODULE and CONFIG name torchtitan's configs in Python, which are not read here" \
        "Name a TOML file, as the first argument or in CONFIG_FILE: CONFIG_FILE=configs/llama3_8b.toml" ;;
    esac
    [ "$names_config" = yes ] || config=${CONFIG_FILE:-configs/debug_model.toml}
    ;;
  *)
    config=$1
    shift
    ;;
esac
case ${COMM_MODE:-default} in
  default) ;;
  fake_backend) set -- --comm.mode=fake_backend --comm.world_size="$ranks" --training.steps=1 "$@" ;;
  local_tensor) fail 64 "COMM_MODE=local_tensor is not offered here" \
    "NGPU=N COMM_MODE=fake_backend is the dry run of one rank; NGPU=N alone runs all ranks on this machine." ;;
  *) fail 64 "COMM_MODE=$COMM_MODE is unknown (there is only fake_backend)" ;;
esac
[ -z "$config" ] || set -- "$config" "$@"
[ "${COMM_MODE:-default}" != default ] || [ "$ranks" = 1 ] || set -- launch -n "$ranks" "$@"

"$TITAN_ROOT/scripts/setup.sh"
build_targets "$(program_target)"
if [ -n "$config" ] && [ ! -e "$config" ] && [ -e "$TITAN_ROOT/$config" ]; then
  cd -- "$TITAN_ROOT"
fi
exec "$TITAN_BUILD/titan_train" "$@"
