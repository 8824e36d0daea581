#!/usr/bin/env bash
# Compares the losses of two runs step by step: two configs, two sets of options, or two revisions of the program.
#   scripts/loss_compare.sh BASELINE TEST [--steps 100] [--assert-equal] [--output-folder outputs/loss_compare]
#     [--baseline-config FILE] [--test-config FILE]      # default: configs/debug_model.toml
#     [--baseline-options WORDS] [--test-options WORDS]  # for titan_train
#     [--baseline-ngpus N] [--test-ngpus N]              # ranks; default: 1
#     [--export-result FILE] [--import-result FILE]      # losses of TEST; the baseline's from such a file
# BASELINE and TEST are `.`, for this checkout, or a commit, which is built in OUTPUT_FOLDER. Both runs are deterministic
# with seed 42 and begin with the same weights, which do not depend on the layout. Prints the differences and writes
# OUTPUT_FOLDER/compared.html. --assert-equal: exit 1 if any loss differs. TITAN_TRAIN is the program of `.`, if given.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,/^\. /{/^\. /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

steps=100 assert_equal=false output=$TITAN_ROOT/outputs/loss_compare export='' import='' revisions=()
declare -A config=([baseline]=$TITAN_ROOT/configs/debug_model.toml [test]=$TITAN_ROOT/configs/debug_model.toml)
declare -A options=([baseline]='' [test]='') ranks=([baseline]=1 [test]=1)
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --assert-equal) assert_equal=true ;;
    --no-seed-checkpoint) ;; # torchtitan's; none is needed here
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
    --*)
      [ $# -gt 1 ] || fail 64 "$1 takes a value"
      case $1 in
        --steps) steps=$2 ;;
        --output-folder) output=$2 ;;
        --export-result) export=$2 ;;
        --import-result) import=$2 ;;
        --baseline-config | --test-config) side=${1#--}; config[${side%-config}]=$2 ;;
        --baseline-options | --test-options) side=${1#--}; options[${side%-options}]=$2 ;;
        --baseline-ngpus | --test-ngpus)
            case $2 in '' | *[!0-9]* | 0) fail 64 "$1 $2: a number of ranks is wanted" ;; esac
            side=${1#--}; ranks[${side%-ngpus}]=$2 ;;
        --baseline-train-file | --test-train-file | --job-dump-folder) # torchtitan's
          say "$1 has no effect: the program is titan_train, and runs are folders of --output-folder" ;;
        *) fail 64 "unknown option $1" "scripts/loss_compare.sh --help lists them" ;;
      esac
      shift ;;
    *) revisions+=("$1") ;;
  esac
  shift
done
[ ${#revisions[@]} -eq 2 ] || fail 64 "name a baseline and a test: commits, or . for this checkout"
case $steps in '' | *[!0-9]* | 0) fail 64 "--steps $steps: a number of steps is wanted" ;; esac
[ -z "$import" ] || [ -f "$import" ] || fail 64 "--import-result: $import does not exist"

# build REVISION: prints the path of its titan_train.
build() {
  local tree commit
  if [ "$1" = . ]; then
    [ -n "${TITAN_TRAIN:-}" ] || build_targets titan_train >&2
    printf '%s' "${TITAN_TRAIN:-$TITAN_BUILD/titan_train}"
    return
  fi
  commit=$(git -C "$TITAN_ROOT" rev-parse --verify --quiet "$1^{commit}") || fail 64 "$1 is no commit"
  tree=$output/source-$commit
  [ -d "$tree" ] || git -C "$TITAN_ROOT" worktree add --quiet --detach "$tree" "$commit" >&2
  (cd "$tree" && bash -c '. scripts/common.sh; build_targets titan_train' scripts/compare.sh) >&2 || fail 70 "$1 could not be built"
  printf '%s' "$tree/build/release/titan_train"
}

# run SIDE PROGRAM: its losses, one line "STEP LOSS" for each step.
run() {
  local words=() launch=()
  read -ra words <<<"${options[$1]}"
  rm -rf "${output:?}/$1"
  [ "${ranks[$1]}" -eq 1 ] || launch=(launch -n "${ranks[$1]}")
  "$2" ${launch[@]+"${launch[@]}"} "${config[$1]}" --training.steps="$steps" --job.dump_folder="$output/$1" --metrics.log_freq=1 \
    --debug.deterministic --debug.seed=42 ${words[@]+"${words[@]}"} >"$output/$1.log" 2>&1 ||
    fail $? "the $1 run failed; the end of $output/$1.log:" "$(tail -n 5 "$output/$1.log")"
  sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$output/$1/metrics.jsonl" >"$output/$1.losses"
}

mkdir -p "$output"
output=$(cd "$output" && pwd -P)
[ -n "$import" ] || baseline=$(build "${revisions[0]}")
test=$(build "${revisions[1]}")
if [ -n "$import" ]; then cp "$import" "$output/baseline.losses"; else run baseline "$baseline"; fi
run test "$test"
[ -z "$export" ] || cp "$output/test.losses" "$export"
pages=("$output/test")
[ -n "$import" ] || pages=("$output/baseline" "$output/test")
"$test" report "${pages[@]}" --out "$output/compared.html" >&2

status=0
awk '
  BEGIN { printf "%8s %14s %14s %12s\n", "step", "baseline", "test", "difference" }
  NR == FNR { baseline[$1] = $2; next }
  !($1 in baseline) { next }
  { difference = $2 - baseline[$1]; size = difference < 0 ? -difference : difference
    printf "%8d %14.8f %14.8f %12.2e\n", $1, baseline[$1], $2, difference
    if (size > most) most = size
    if ($2 != baseline[$1] && !first) first = $1
    sum += size; ++steps }
  END { if (!steps) exit 2
    printf "%d steps: largest difference %.2e, mean %.2e; %s\n", steps, most, sum / steps, first ? "they differ from step " first " on" : "all losses are equal"
    exit first ? 1 : 0 }' "$output/baseline.losses" "$output/test.losses" || status=$?
[ "$status" -ne 2 ] || fail 1 "the two runs have no step in common"
[ "$(wc -l <"$output/baseline.losses")" -eq "$(wc -l <"$output/test.losses")" ] || { say "the runs have not the same number of steps"; status=1; }
say "$output/compared.html shows both"
if $assert_equal; then exit "$status"; fi
