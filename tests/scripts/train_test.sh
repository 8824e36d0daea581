#!/usr/bin/env bash
# What scripts/train.sh hands to titan_train, seen by a program in its place; nothing is installed or built here.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"
unset TITAN_PARQUET  # of the test command: these builds are made by stand-ins

# A checkout whose build is up to date and whose titan_train prints its working folder and arguments.
make_checkout() {
  mkdir -p "my titan/configs" "my titan/build/release" site/torch/lib
  cp -r "$checkout/scripts" "my titan/"
  touch "my titan/configs/debug_model.toml" "my titan/configs/other.toml" site/torch/lib/libtorch_cpu.so
  program ninja </dev/null
  export PATH=$PWD/bin:$PATH TITAN_SKIP_SETUP=1
  unset CONFIG_FILE NGPU LOG_RANK COMM_MODE TITAN_LIBTORCH TITAN_CUDA
  root=$PWD/my\ titan
  touch "$root/build/release/build.ninja"
  echo "TITAN_LIBTORCH_FOUND:INTERNAL=$PWD/site" >"$root/build/release/CMakeCache.txt"
  echo "libtorch= cuda=AUTO nvcc=$(command -v nvcc || true) parquet=OFF" >"$root/build/release/.configured-with"
  # shellcheck disable=SC2016  # expanded when the program runs
  printf '#!/bin/sh\nprintf "%%s: " "$PWD"; printf "${LOG_RANK:+LOG_RANK=$LOG_RANK }"; printf "[%%s]" "$@"\n' >"$root/build/release/titan_train"
  chmod +x "$root/build/release/titan_train"
}

default_config() {
  make_checkout
  expect 0 "$root/scripts/train.sh"
  expect_equal "$root: [configs/debug_model.toml]" "$printed"
}

named_config() {
  make_checkout
  expect 0 "$root/scripts/train.sh" configs/other.toml --training.steps 3
  expect_equal "$root: [configs/other.toml][--training.steps][3]" "$printed"
  mkdir configs
  touch configs/other.toml
  expect 0 "$root/scripts/train.sh" configs/other.toml
  expect_equal "$PWD: [configs/other.toml]" "$printed"
}

overrides_only() {
  make_checkout
  expect 0 "$root/scripts/train.sh" --training.steps=3 -- --metrics.no-log "two words"
  expect_equal "$root: [configs/debug_model.toml][--training.steps=3][--][--metrics.no-log][two words]" "$printed"
}

config_file_variable() {
  make_checkout
  export CONFIG_FILE="my own.toml"
  touch "my own.toml"
  expect 0 "$root/scripts/train.sh" --training.steps 3
  expect_equal "$PWD: [my own.toml][--training.steps][3]" "$printed"
  expect 0 "$root/scripts/train.sh" configs/other.toml
  expect_equal "$root: [configs/other.toml]" "$printed"
}

todays_torchtitan() {
  make_checkout
  MODULE=llama3 CONFIG=llama3_8b expect 64 "$root/scripts/train.sh"
  expect_text "MODULE and CONFIG name torchtitan's configs in Python"
  expect_text "CONFIG_FILE=configs/llama3_8b.toml"
  CONFIG=llama3_8b CONFIG_FILE=configs/other.toml expect 0 "$root/scripts/train.sh"
  CONFIG=Release expect 0 "$root/scripts/train.sh"
}

config_file_option() {
  make_checkout
  expect 0 "$root/scripts/train.sh" --job.config_file elsewhere.toml
  expect_equal "$PWD: [--job.config_file][elsewhere.toml]" "$printed"
}

through_a_link() {
  make_checkout
  mkdir away
  cd away
  expect 0 "../my titan/scripts/train.sh" missing.toml
  expect_equal "$PWD: [missing.toml]" "$printed"
}

several_processes() {
  make_checkout
  NGPU=8 expect 0 "$root/scripts/train.sh" --training.steps 3
  expect_equal "$root: [launch][-n][8][configs/debug_model.toml][--training.steps][3]" "$printed"
  NGPU=2 LOG_RANK=0,1 CONFIG_FILE=configs/other.toml expect 0 "$root/scripts/train.sh"
  expect_equal "$root: LOG_RANK=0,1 [launch][-n][2][configs/other.toml]" "$printed"
  NGPU=1 expect 0 "$root/scripts/train.sh"
  expect_equal "$root: [configs/debug_model.toml]" "$printed"
  NGPU=two expect 64 "$root/scripts/train.sh"
  expect_text "NGPU=two"
}

dry_run() {
  make_checkout
  NGPU=32 COMM_MODE=fake_backend expect 0 "$root/scripts/train.sh" --training.steps=2
  expect_equal "$root: [configs/debug_model.toml][--comm.mode=fake_backend][--comm.world_size=32][--training.steps=1][--training.steps=2]" "$printed"
  COMM_MODE=local_tensor expect 64 "$root/scripts/train.sh"
  expect_text "COMM_MODE=fake_backend"
  COMM_MODE=else expect 64 "$root/scripts/train.sh"
}

becomes_the_trainer() {
  make_checkout
  # Replaced by the trainer, not its parent: a signal to the script then reaches the trainer.
  printf '#!/bin/sh\necho $$\nexit 75\n' >"$root/build/release/titan_train"
  local status=0
  "$root/scripts/train.sh" >pid &
  local started=$!
  wait "$started" || status=$?
  expect_equal 75 "$status"
  expect_equal "$started" "$(cat pid)"
}

failed_build() {
  make_checkout
  program ninja <<<'echo "a compiler message"; exit 1'
  expect 70 "$root/scripts/train.sh"
  expect_text "a compiler message"
  expect_text "the build failed"
}

# A ninja that does what standard input says, where "state DONE TOTAL SECONDS" prints the state as the real one does.
make_ninja() {
  # shellcheck disable=SC2016  # expanded when the program runs
  { echo 'state() { echo "$NINJA_STATUS Building CXX object $1.o" | sed "s/%f/$1/; s/%t/$2/; s/%e/$3/"; }'; cat; } | program ninja
}

progress_in_a_log() {
  make_checkout
  # shellcheck disable=SC2016  # expanded when the program runs
  make_ninja <<<'state 10 30 1.000; for step in 1 2 3 4 5 6 7 8 9; do state $((10 + step)) 30 $((10 * step)).123; done; echo "a.cpp: note"'
  expect 0 "$root/scripts/train.sh"
  expect_equal "Building: 13 of 30 steps, about 3 min left
Building: 16 of 30 steps, about 2 min left
Building: 19 of 30 steps, about 2 min left
a.cpp: note
$root: [configs/debug_model.toml]" "$printed"
}

progress_on_a_terminal() {
  make_checkout
  make_ninja <<<'state 1 20 1.000; state 10 20 100.123'
  expect 0 python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "$root/scripts/train.sh"
  local rewritten=$'\r\e[K'
  expect_equal "${rewritten}Building: 1 of 20 steps${rewritten}Building: 10 of 20 steps, about 2 min left${rewritten}$root: [configs/debug_model.toml]" "${printed//$'\r\n'/}"
}

little_memory() {
  make_checkout
  program nproc <<<'echo 4'
  # shellcheck disable=SC2016  # expanded when the program runs
  make_ninja <<<'state 1 72 1.000; echo "ninja $*"'
  # shellcheck disable=SC2016
  program cat <<<'[ $# -gt 0 ] || exec /bin/cat; echo "MemAvailable: 3900000 kB"; echo max'
  expect 0 "$root/scripts/train.sh"
  expect_text "1 at a time instead of 4, because 3 GB of memory are free and each takes 2"
  expect_text "ninja -j 1 "
  # shellcheck disable=SC2016  # a container's limit
  program cat <<<'[ $# -gt 0 ] || exec /bin/cat; echo "MemAvailable: 9000000 kB"; echo 4294967296'
  expect 0 "$root/scripts/train.sh"
  expect_text "2 at a time instead of 4, because 4 GB of memory"
  make_ninja <<<'state 1 2 1.000'
  expect 0 "$root/scripts/train.sh"
  expect_equal "$root: [configs/debug_model.toml]" "$printed"
}

# A checkout that is not configured. LibTorch's download and ninja each wait until the other runs, for ten seconds.
make_unconfigured_checkout() {
  make_checkout
  rm "$root/build/release/.configured-with"
  program cmake </dev/null
  cat >meet.sh <<'END'
touch "$1"
for _ in $(seq 100); do [ ! -e "$2" ] || exit 0; sleep 0.1; done
exit 1
END
  program ninja <<<"case \$* in *' titan_train') exec bash '$PWD/meet.sh' '$PWD/compiling' '$PWD/fetching' ;; esac"
  echo "bash '$PWD/meet.sh' '$PWD/fetching' '$PWD/compiling'" >"$root/scripts/libtorch.sh"
}

fetches_while_it_compiles() {
  make_unconfigured_checkout
  expect 0 "$root/scripts/train.sh"
  expect_equal "$root: [configs/debug_model.toml]" "$printed"
  [ -e compiling ] && [ -e fetching ]
}

old_cuda_compiler() {
  make_unconfigured_checkout
  program nvcc <<<'echo "Cuda compilation tools, release 12.4"'
  TITAN_CUDA=ON expect 70 "$root/scripts/train.sh"
  expect_text "TITAN_CUDA=ON needs a CUDA 13 compiler"
  [ ! -e fetching ]
}

failed_fetch() {
  make_unconfigured_checkout
  program ninja <<<"trap 'touch \"$PWD/stopped\"; exit 2' INT; touch '$PWD/compiling'; sleep 20 & wait"
  echo "bash '$PWD/meet.sh' fetching '$PWD/compiling'; echo 'no network' >&2; exit 69" >"$root/scripts/libtorch.sh"
  expect 69 "$root/scripts/train.sh"
  expect_text "no network"
  [ -e stopped ]
}

interrupted_build() {
  make_checkout
  make_ninja <<<"trap 'echo \"ninja: build stopped: interrupted by user.\"; exit 2' INT; sleep 1; touch '$PWD/building'; sleep 60"
  expect_interrupted building "$root/scripts/train.sh"
  expect_text "ninja: build stopped"
  expect_text "Interrupted. The same command continues from here."
  case $printed in *"the build failed"*) return 1 ;; esac
}

check "train.sh trains the debug model when it is given no arguments" default_config
check "train.sh takes a config of the current folder before one of the checkout" named_config
check "train.sh passes overrides and what follows -- unchanged" overrides_only
check "train.sh takes the config from CONFIG_FILE when no argument names one" config_file_variable
check "train.sh answers MODULE and CONFIG of torchtitan with what to say instead" todays_torchtitan
check "train.sh adds no config to one given as --job.config_file" config_file_option
check "train.sh leaves a config it cannot find to titan_train's own message" through_a_link
check "train.sh starts NGPU processes and shows the ranks of LOG_RANK" several_processes
check "train.sh with COMM_MODE=fake_backend is one step of one rank" dry_run
check "train.sh becomes the trainer: signals and exit codes are the trainer's" becomes_the_trainer
check "train.sh does not train after a failed build" failed_build
check "train.sh shows a build's progress in a log by a line every half minute" progress_in_a_log
check "train.sh shows a build's progress on a terminal in one line" progress_on_a_terminal
check "train.sh says why few compilers run where memory is short" little_memory
check "train.sh fetches LibTorch while it compiles what does not need it" fetches_while_it_compiles
check "train.sh asked for CUDA fetches nothing where no CUDA 13 compiler is" old_cuda_compiler
check "train.sh stops compiling when LibTorch cannot be fetched" failed_fetch
check "train.sh that is interrupted while it builds calls it no failure" interrupted_build
finish
