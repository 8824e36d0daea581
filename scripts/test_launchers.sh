#!/usr/bin/env bash
# Runs titan_train under every launcher it knows: its own, torchrun, Open MPI's mpirun, MPICH's mpiexec.hydra and Slurm's
# srun, the last with two slurmd on this machine. The ranks must meet, print the same losses digit for digit under all of
# them, and end together when one fails. One line "ok", "not ok" or "skipped" per check; exit 1 when one failed.
#   scripts/test_launchers.sh               installs what is missing (needs root), two and four ranks
#   scripts/test_launchers.sh --installed   only the launchers that are there, two ranks
# TITAN_BINARY names the program to test instead of the release build.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly end_limit=10  # seconds from the failure of a rank to the end of all
readonly run_limit=120 # seconds; only to end what hangs
scratch=$(mktemp -d)
daemons=()
failures=0

ok() { printf 'ok %s\n' "$1"; }
skip() { printf 'skipped %s: %s\n' "$1" "$2"; }
not_ok() {
  printf 'not ok %s\n' "$1"
  sed 's/^/    /' "$2"
  failures=$((failures + 1))
}

install_launchers() {
  local missing=() command package
  while read -r command package; do
    command -v "$command" >/dev/null || missing+=("$package")
  done <<'END'
mpirun.openmpi openmpi-bin
mpiexec.hydra mpich
srun slurm-client
slurmctld slurmctld
slurmd slurmd
munged munge
END
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" -eq 0 ] || { say "not installed, which needs root: ${missing[*]}"; return 0; }
  say "Installing with apt: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
    say "apt could not install: ${missing[*]}"
}

# A cluster of one machine with two slurmd, in $scratch/slurm. The first node bears the name of this host, because ranks
# look for rank 0 by it; the second is never looked for.
start_slurm() {
  local folder=$scratch/slurm host
  host=$(hostname)
  getent hosts "$host" >/dev/null || { slurm_reason="the name of this host, $host, has no address"; return 1; }
  mkdir -p "$folder/state" "$folder/spool.$host" "$folder/spool.zz-titan" "$folder/munge"
  chmod 711 "$scratch" "$folder" && chmod 700 "$folder/munge"
  head -c 1024 /dev/urandom >"$folder/munge/key"
  chmod 600 "$folder/munge/key"
  cat >"$folder/slurm.conf" <<END
ClusterName=titan
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
SlurmctldPort=17000
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
NodeName=$host,zz-titan NodeAddr=127.0.0.1 NodeHostname=$host Port=[17001-17002] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
END
  export SLURM_CONF=$folder/slurm.conf
  run_daemon munged --force --foreground --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
  until_true "[ -S '$folder/munge/socket' ]" || { slurm_reason="munged did not start"; return 1; }
  run_daemon slurmctld -D
  run_daemon slurmd -D -N "$host"
  run_daemon slurmd -D -N zz-titan
  until_true "[ \"\$(sinfo -h -t idle -o %D 2>/dev/null)\" = 2 ]" ||
    { slurm_reason="its daemons did not start: $(tail -n 1 "$scratch"/slurmctld.log)"; return 1; }
}

run_daemon() {
  "$@" >"$scratch/$1.log" 2>&1 &
  daemons+=($!)
}

# until_true CONDITION: looks again and again, half a minute at most.
until_true() {
  local begin=$SECONDS
  until eval "$1"; do
    [ $((SECONDS - begin)) -lt 30 ] || return 1
    sleep 0.1
  done
}

clean_up() {
  local daemon
  for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null || true; done
  wait
  rm -rf "$scratch"
}

# have LAUNCHER: whether it can be used here; $reason says why not.
have() {
  case $1 in
    launch) ;;
    torchrun) python=$("$TITAN_ROOT/scripts/test_python.sh") || { reason="no Python with torch"; return 1; } ;;
    srun)
      if [ -z "${slurm_state:-}" ]; then
        slurm_state=there slurm_reason="srun, slurmctld, slurmd and munged are not all installed"
        { command -v srun && command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null && start_slurm ||
          slurm_state=absent
      fi
      reason=$slurm_reason
      [ "$slurm_state" = there ]
      ;;
    *) command -v "$1" >/dev/null || { reason="$1 is not installed"; return 1; } ;;
  esac
}

# start LAUNCHER RANKS WORD...: titan_train WORD... on so many ranks; everything printed goes to $scratch/output.
start() {
  local launcher=$1 ranks=$2 status=0 command
  shift 2
  case $launcher in
    launch) command=("$binary" launch -n "$ranks") ;;
    torchrun) command=("$python" -m torch.distributed.run --no-python --nproc-per-node "$ranks" "$binary") ;;
    mpirun.openmpi) command=(mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -np "$ranks" "$binary") ;;
    mpiexec.hydra) command=(mpiexec.hydra -n "$ranks" "$binary") ;;
    srun) command=(srun -N 2 -n "$ranks" --ntasks-per-node=$((ranks / 2)) "$binary") ;;
  esac
  timeout -k 10 "$run_limit" "${command[@]}" "$@" </dev/null >"$scratch/output" 2>&1 || status=$?
  return "$status"
}

check_barrier() {
  local launcher=$1 ranks=$2
  local sentence="$ranks ranks under $launcher meet and agree"
  start "$launcher" "$ranks" ranks --job.dump_folder="$scratch/run" || { not_ok "$sentence" "$scratch/output"; return 0; }
  if grep -q "All $ranks ranks agree" "$scratch/output"; then ok "$sentence"; else not_ok "$sentence" "$scratch/output"; fi
}

# The losses of five steps, as metrics.jsonl has them, are those of titan_train launch.
check_losses() {
  local launcher=$1 ranks=$2 folder=$scratch/$1-$2 status=0
  local sentence="$ranks ranks under $launcher have the losses of titan_train launch, digit for digit"
  [ "$launcher" != launch ] || sentence="$ranks ranks under launch train"
  rm -rf "$folder"
  start "$launcher" "$ranks" "$TITAN_ROOT/configs/debug_model.toml" --job.dump_folder="$folder" --debug.seed=1 \
    --training.steps=5 --metrics.log_freq=1 --training.seq_len=64 --training.threads=1 --training.device=cpu || status=$?
  grep -oE '"loss": ?[^,}]+' "$folder/metrics.jsonl" >"$folder.losses" 2>/dev/null || true
  if [ "$status" -eq 0 ] && [ "$(grep -c . "$folder.losses")" -eq 5 ] &&
    cmp -s "$scratch/launch-$ranks.losses" "$folder.losses"; then
    ok "$sentence"
  else
    cat "$scratch/launch-$ranks.losses" "$folder.losses" >>"$scratch/output" 2>/dev/null || true
    not_ok "$sentence" "$scratch/output"
  fi
}

check_failure() {
  local launcher=$1 ranks=$2 status=0 begin seconds started told="failed with exit code 70: .*--fail asks for it"
  local sentence="a failing rank under $launcher ends all $ranks, with its message printed last"
  : >"$scratch/output"
  start "$launcher" "$ranks" ranks --hold 600 --fail 1 --job.dump_folder="$scratch/run" &
  started=$!
  until grep -q "$told" "$scratch/output" || ! kill -0 "$started" 2>/dev/null; do sleep 0.1; done
  # The ranks' end, not that of the launcher, which may have much to say.
  begin=$SECONDS
  while pgrep -f "^$binary ranks .*$scratch/run" >/dev/null; do sleep 0.1; done
  seconds=$((SECONDS - begin))
  wait "$started" || status=$?
  # Launchers add their own lines; of what titan_train says, the reason is the last.
  if [ "$status" -ne 0 ] && [ "$seconds" -le "$end_limit" ] && grep -q "$told" "$scratch/output" &&
    grep -E 'titan_train( launch)?: ' "$scratch/output" | tail -n 1 | grep -q -- '--fail asks for it'; then
    ok "$sentence"
  else
    echo "exit code $status; the ranks ended $seconds s after the message" >>"$scratch/output"
    not_ok "$sentence" "$scratch/output"
  fi
}

check_batch_shell() {
  local sentence="the batch shell of a Slurm job is refused" status=0
  timeout "$run_limit" sbatch --wait -N 2 --ntasks-per-node=1 -o "$scratch/output" --wrap "$binary ranks" >/dev/null 2>&1 || status=$?
  if [ "$status" -eq 69 ] && grep -q "start the run with srun" "$scratch/output"; then
    ok "$sentence"
  else
    not_ok "$sentence" "$scratch/output"
  fi
}

# scripts/titan.sbatch with its first lines adapted to this machine: no GPUs, one core a task.
check_batch_script() {
  local sentence="scripts/titan.sbatch starts its ranks with srun" status=0
  sed '/^#SBATCH/d' "$TITAN_ROOT/scripts/titan.sbatch" >"$scratch/job.sh"
  TITAN_TRAIN=$binary timeout "$run_limit" sbatch --wait -N 2 --ntasks-per-node=1 -o "$scratch/output" \
    "$scratch/job.sh" ranks >/dev/null 2>&1 || status=$?
  if [ "$status" -eq 0 ] && grep -q "All 2 ranks agree" "$scratch/output"; then
    ok "$sentence"
  else
    not_ok "$sentence" "$scratch/output"
  fi
}

rank_counts='2 4'
case ${1:-} in
  '') install_launchers ;;
  --installed) rank_counts=2 ;;
  *) fail 64 "unknown argument $1 (there is only --installed)" ;;
esac
binary=${TITAN_BINARY:-$TITAN_BUILD/titan_train}
[ -x "$binary" ] || fail 69 "$binary is not there" "Build it: scripts/train.sh or scripts/test.sh does."
trap clean_up EXIT
# Several processes on few cores, and no variable of a launcher around this one.
export OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOG_RANK

for launcher in launch torchrun mpirun.openmpi mpiexec.hydra srun; do
  if ! have "$launcher"; then
    skip "$launcher" "$reason"
    continue
  fi
  for ranks in $rank_counts; do
    check_barrier "$launcher" "$ranks"
    check_losses "$launcher" "$ranks"
    check_failure "$launcher" "$ranks"
  done
  [ "$launcher" != srun ] || { check_batch_shell; check_batch_script; }
done
[ "$failures" -eq 0 ]
