#!/usr/bin/env bash
# What scripts/titan.sbatch asks of srun, and what it makes of the exit code; with stand-ins for Slurm.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# make_job [STATUS [RESTARTS [END]]]: a job's shell, in which srun prints its words and ends with STATUS, and titan_train
# restart, which prints them too, wants RESTARTS restarts and then ends with END, else with the code that it is given.
make_job() {
  program sleep <<<'exit 0' # after a step that ended at once
  program srun <<<"printf '[%s]' \"\$@\"; echo \" \$TITAN_RESTARTED\"; exit ${1:-0}"
  # shellcheck disable=SC2016  # expanded when it runs
  program scontrol <<<'echo " scontrol $*"'
  program titan_train <<<"echo x >>'$PWD/decisions'; printf '(%s)' \"\$@\"; echo \" \$TITAN_RESTARTED\"
    [ \$(wc -l <'$PWD/decisions') -gt ${2:-0} ] || exit 75; exit ${3:-\$3}"
  export PATH=$PWD/bin:$PATH TITAN_TRAIN=$PWD/bin/titan_train SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=12
}

job() { bash "$checkout/scripts/titan.sbatch" "$@"; }

steps_words() {
  make_job
  expect 0 job configs/a.toml --training.steps 3
  expect_equal "[-K][--cpus-per-task=12][--cpu-bind=none][--export=ALL][$TITAN_TRAIN][configs/a.toml][--training.steps][3] " "$printed"
  unset SLURM_CPUS_PER_TASK
  expect 0 job configs/a.toml
  expect_text "[--cpus-per-task=1]"
}

exit_codes() {
  make_job 74
  expect 74 job configs/a.toml
  local code
  for code in 75 138; do # 138: SIGUSR1 came before the program could take it
    make_job "$code"
    expect 75 job configs/a.toml
    expect_text " scontrol requeue 7"
    expect_equal 1 "$(starts)"
  done
}

starts() { grep -c '^\[-K\]' <<<"$printed"; }

restarts() {
  make_job 74 2
  expect 74 job configs/a.toml --checkpoint.enable
  expect_equal 3 "$(starts)"
  # The time is that before srun.
  grep -q '(--exit-code)(74)(--began)([0-9]*)(--restarts)' <<<"$printed"
  printed=$(printf '%s\n' "$printed" | sed 's/(--began)([0-9]*)//')
  expect_text "(restart)(--exit-code)(74)(--restarts)(100)(--supervisor)(Slurm job 7)(configs/a.toml)(--checkpoint.enable)"
  expect_equal 3 "$(grep -c '^(restart)' <<<"$printed")"
  expect_equal "  1 1" "$(sed -n 's/^\[-K\].*\]//p' <<<"$printed" | tr -d '\n')"
  expect_equal "  1 1" "$(sed -n 's/^(restart).*)//p' <<<"$printed" | tr -d '\n')"
  rm decisions
  TITAN_RESTARTED=1 expect 74 job configs/a.toml
  expect_equal "  1 1" "$(sed -n 's/^(restart).*)//p' <<<"$printed" | tr -d '\n')"
  rm decisions
  TITAN_RESTARTS=7 expect 74 job configs/a.toml
  expect_text "(--restarts)(7)"
  rm decisions
  TITAN_RESTARTS=0 expect 74 job configs/a.toml
  expect_equal 1 "$(starts)"
  [ ! -e decisions ]
  make_job 74 0 73  # the checkpoints are gone
  expect 73 job configs/a.toml
}

wrong_restarts() {
  make_job
  for restarts in many -1 1.5 1e3 ' ' 99999999999999999999; do
    TITAN_RESTARTS=$restarts expect 64 job configs/a.toml
    expect_equal "error: TITAN_RESTARTS is \"$restarts\"; set it to how often a run that failed is started again, such as 100, or 0" \
      "$printed"
  done
  TITAN_RESTARTS=999999999999999999 expect 0 job configs/a.toml
}

ordinary_ends() {
  for status in 0 75; do
    make_job "$status" 2
    expect "$status" job configs/a.toml
    expect_equal 1 "$(starts)"
    [ ! -e decisions ]
  done
}

signals() {
  make_job 74 2
  # shellcheck disable=SC2016  # expanded when it runs
  program srun <<<'echo "[-K]"; kill -TERM $PPID; exit 143'
  expect 143 job configs/a.toml
  expect_equal 1 "$(starts)"
  # shellcheck disable=SC2016  # expanded when it runs
  program srun <<<'echo "[-K]"; kill -INT $PPID; exit 130'
  expect 130 job configs/a.toml
  expect_equal 1 "$(starts)"
  [ ! -e decisions ]
  for status in 130 143; do # srun's own, after another rank failed
    make_job "$status" 1 "$status"
    expect "$status" job configs/a.toml
    expect_equal 2 "$(starts)"
    expect_text "(restart)(--exit-code)($status)"
    rm decisions
  done
}

no_program() {
  make_job
  TITAN_TRAIN=$PWD/nowhere expect 69 job configs/a.toml
  expect_text "name one in TITAN_TRAIN"
  expect 1 job
  expect_text "name a config"
  SLURM_SUBMIT_DIR=$PWD/submitted TITAN_TRAIN='' expect 69 job configs/a.toml
  expect_text "$PWD/submitted/build/release/titan_train is no program"
}

valid_options() {
  expect_equal 0 "$(sed -n '/^#SBATCH/!d; /^#SBATCH --[a-z-]*\(=[^ ]*\)\?$/!p' "$checkout/scripts/titan.sbatch" | wc -l)"
}

check "titan.sbatch gives srun the job's cores and the program's words" steps_words
check "titan.sbatch ends as the step does, and asks to be requeued on 75" exit_codes
check "titan.sbatch starts a failed run again for as long as titan_train restart says so" restarts
check "titan.sbatch refuses a count of restarts that is none before it starts a step" wrong_restarts
check "titan.sbatch leaves a run alone that ended well or saved" ordinary_ends
check "titan.sbatch starts nothing after a signal of its own" signals
check "titan.sbatch says what is missing before it starts a step" no_program
check "titan.sbatch's own options are one to a line" valid_options
finish
