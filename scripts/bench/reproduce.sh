#!/usr/bin/env bash
# Reproduces rows of torchtitan's published tables: trains configs/bench/ROW.toml, takes tokens per second and GPU at
# step 90 and the largest peak memory of any rank, and adds a line to docs/benchmarks/reproduce.md: published, simulated
# (titan_train plan, on the row's GPUs), measured.
#   scripts/bench/reproduce.sh [--with launch|torchrun|mpirun|srun] [--gpus-per-node 8] [--out FILE]
#                              [--output-folder outputs/bench] ROW... [--OPTION...]
#   scripts/bench/reproduce.sh --list       # all rows
#   scripts/bench/reproduce.sh --dry-run ROW...  # one rank of the row's layout, a small model, on a CPU; measures nothing
# Lines go to FILE; a run's own files (metrics, report) to ROW in the output folder, which all nodes see.
# OPTIONs go to titan_train, e.g. --training.dataset_path=/data/c4. Without --with: srun in a Slurm job, else the program's
# own launcher, on one node. torchrun: call the script on every node, with torchrun's variables in TORCHRUN_OPTIONS.
# TITAN_TRAIN names another program than build/release/titan_train.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

rows=$TITAN_ROOT/configs/bench
titan_train=${TITAN_TRAIN:-$TITAN_BUILD/titan_train}
out=$TITAN_ROOT/docs/benchmarks/reproduce.md output=$TITAN_ROOT/outputs/bench
with='' per_node=8 dry_run=false names=() options=()
while [ $# -gt 0 ]; do
  case $1 in
    --with | --gpus-per-node | --out | --output-folder)
      [ $# -gt 1 ] || fail 64 "$1 takes a value"
      case $1 in --with) with=$2 ;; --out) out=$2 ;; --output-folder) output=$2 ;; *) per_node=$2 ;; esac
      shift ;;
    --with=*) with=${1#*=} ;;
    --gpus-per-node=*) per_node=${1#*=} ;;
    --out=*) out=${1#*=} ;;
    --output-folder=*) output=${1#*=} ;;
    --dry-run) dry_run=true ;;
    --list) head -qn 2 "$rows"/*.toml | sed 's/^# //'; exit 0 ;;
    -h | --help) sed -n '2,/^\. /{/^\. /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --*) options+=("$1") ;;
    *) names+=("$1") ;;
  esac
  shift
done
[ ${#names[@]} -gt 0 ] || fail 64 "name the rows to reproduce; --list shows them"
case $per_node in '' | *[!0-9]* | 0) fail 64 "--gpus-per-node $per_node: a number of GPUs is wanted" ;; esac
[ -n "$with" ] || with=${SLURM_JOB_ID:+srun}
with=${with:-launch}
case $with in launch | torchrun | mpirun | srun) ;; *) fail 64 "--with $with: launch, torchrun, mpirun or srun" ;; esac
for row in "${names[@]}"; do
  [ -f "$rows/$row.toml" ] || fail 64 "$row is no row; --list shows them"
done
[ -x "$titan_train" ] || fail 69 "$titan_train is not built; scripts/train.sh builds it, TITAN_TRAIN names another"

gpus_of() { sed -n '1s/^# Row [^:]*: .* on \([0-9]*\) .*/\1/p' "$1"; }
published_of() { sed -n '2s/^# Published: \(.*\)\.$/\1/p' "$1"; }

# run_row CONFIG GPUS OPTION...: trains it.
run_row() {
  local config=$1 gpus=$2 nodes torchrun_options
  shift 2
  nodes=$(((gpus + per_node - 1) / per_node))
  case $with in
    launch)
      [ "$nodes" -eq 1 ] || fail 64 "$gpus GPUs are $nodes nodes: --with torchrun, mpirun or srun"
      "$titan_train" launch -n "$gpus" "$config" "$@" ;;
    torchrun)
      read -ra torchrun_options <<<"${TORCHRUN_OPTIONS:-}"
      torchrun --no-python --nnodes "$nodes" --nproc-per-node "$per_node" ${torchrun_options[@]+"${torchrun_options[@]}"} \
        "$titan_train" "$config" "$@" ;;
    mpirun) mpirun -n "$gpus" --map-by "ppr:$per_node:node" -x MASTER_ADDR -x TITAN_LIBTORCH "$titan_train" "$config" "$@" ;;
    srun) srun -K --nodes "$nodes" --ntasks "$gpus" --ntasks-per-node "$per_node" --cpus-per-task "${SLURM_CPUS_PER_TASK:-1}" \
      --cpu-bind=none "$titan_train" "$config" "$@" ;;
  esac
}

# dry_run CONFIG GPUS OPTION...: the same layout and settings, with 16 narrow layers and short sequences.
dry_run() {
  local config=$1 gpus=$2 small=(--model.flavor=debugmodel --model.override.n_layers=16 --training.seq_len=128)
  shift 2
  ! grep -q '^converters' "$config" || small+=(--quantize.linear.float8.emulate --compile.enable=false)
  cat "$TITAN_ROOT"/docs/*.md >"$scratch/corpus.txt"
  "$titan_train" "$config" "${small[@]}" --training.steps=1 --training.dataset_path="$scratch/corpus.txt" \
    --model.tokenizer_path="$TITAN_ROOT/configs/tokenizers/stories.model" --job.dump_folder="$scratch" \
    --comm.mode=fake_backend --comm.world_size="$gpus" "$@"
}

# simulated_of CONFIG GPUS OPTION...: what `plan` says of the row.
simulated_of() {
  local config=$1 gpus=$2 gpu=h100-95 json
  shift 2
  ! head -n 1 "$config" | grep -q A100 || gpu=a100-80
  json=$("$titan_train" plan "$config" "$@" --world "$gpus" --gpu "$gpu" --json 2>/dev/null) || { printf '–'; return 0; }
  printf '%s\n' "$json" | awk -F'[:,]' '/"tokens_per_second_per_gpu"/ { tps = $2 } /"reserved_bytes"/ { memory = $2 }
    END { printf "%.0f tokens/s per GPU, %.1f GiB", tps, memory / 2^30 }'
}

# value NAME FILE: of the line of step 90 in metrics.jsonl.
value() { sed -n 's/^{"step":90,.*"'"$1"'":\([0-9.e+]*\).*/\1/p' "$2" | tail -n 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for row in "${names[@]}"; do
  config=$rows/$row.toml
  gpus=$(gpus_of "$config")
  if $dry_run; then
    say "dry run of $row: rank 0 of $gpus, a small model on a CPU, no communication; nothing is measured"
    dry_run "$config" "$gpus" ${options[@]+"${options[@]}"} >&2
    continue
  fi
  run_row "$config" "$gpus" "--job.dump_folder=$output/$row" ${options[@]+"${options[@]}"} >&2
  metrics=$output/$row/metrics.jsonl
  [ -f "$metrics" ] || { say "$row: another node records this run"; continue; }
  tps=$(value tps "$metrics") memory=$(value most_memory_bytes "$metrics")
  [ -n "$tps$memory" ] || fail 1 "$metrics has no line of step 90 with tps and ranks"
  line=$(awk -v row="$row" -v published="$(published_of "$config")" \
    -v simulated="$(simulated_of "$config" "$gpus" ${options[@]+"${options[@]}"})" -v tps="$tps" -v memory="$memory" -v date="$(date -u +%F)" \
    -v commit="$(git -C "$TITAN_ROOT" rev-parse --short HEAD 2>/dev/null || echo '?')" \
    'BEGIN { printf "| %s | %s | %s | %.0f tokens/s per GPU, %.1f GiB | %s | %s |", row, published, simulated, tps, memory / 2^30, date, commit }')
  printf '%s\n' "$line" | tee -a "$out"
done
