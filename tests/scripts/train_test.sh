#!/usr/bin/env bash
# What scripts/train.sh hands to titan_train, seen by a program in its place; nothing is installed or built here.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

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
  echo "libtorch= cuda=AUTO nvcc=$(command -v nvcc || true)" >"$root/build/release/.configured-with"
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
finish
