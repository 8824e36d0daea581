#!/usr/bin/env bash
# What scripts/gpu/check.sh makes of a machine and of what the programs print, with stand-ins for both.
# shellcheck disable=SC2016  # what stand-ins do is expanded when they run
# With --full only: tests the page of a check that itself runs on GPUs.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# A folder of programs that pass, or do what the lines on standard input say, and a card.
make_machine() {
  mkdir -p programs
  program nvidia-smi <<<'echo "A Card, 580.1, 143771 MiB"'
  export PATH=$PWD/bin:$PATH
  cat >programs/titan_train <<'STOP'
#!/bin/sh
key=cpu
for word in "$@"; do
  case $word in
    --job.dump_folder=*) folder=${word#*=} ;;
    *flex_attn) key=documents-cpu ;;
    *param=bfloat16) [ $key = cpu ] || key=documents-bf16-cpu ;;
  esac
done
# What a CPU computed in advance: of every row, for here all have the same losses.
losses=$(sed -n "s/^\"$key\": \[\(.*\)\].*/\1/p" "$LOSSES" | tr -d ,)
. "$(dirname "$0")/odd"
set -- $losses
for step in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  echo "{\"step\": $step, \"loss\": $1}"
  [ $# -eq 1 ] || shift
done >"$folder/metrics.jsonl"
STOP
  cat >programs/odd
  printf '#!/bin/sh\necho "[  PASSED  ] 3 tests."\n' >programs/distributed_test
  cp programs/distributed_test programs/ops_test
  cp programs/distributed_test programs/train_test
  for name in kernels_test bench_device_ceiling bench_kernel_rates; do cp programs/distributed_test "programs/$name"; done
  chmod +x programs/*
}

export LOSSES=$checkout/scripts/gpu/cpu_losses.json
gpu_check() { TMPDIR=$PWD/programs "$checkout/scripts/gpu/check.sh" --packed "$PWD/programs" --page "$PWD/page.md" "$@"; }

no_gpu() {
  program nvidia-smi <<<'exit 9'
  PATH=$PWD/bin:$PATH expect 69 "$checkout/scripts/gpu/check.sh"
  expect_text "there is no GPU here"
}

all_rows() {
  make_machine <<<''
  expect 0 gpu_check --commit abc123
  printed=$(cat page.md)
  expect_text "Commit abc123; A Card, 580.1, 143771 MiB; "
  for row in kernels_test ops_test distributed_test train_test; do
    expect_equal 1 "$(grep -c "^| $row | .* | ok |$" page.md)"
  done
  for row in single fused sync-check sync-check-fused bf16 bf16-fused float8 float8-fused deterministic documents documents-bf16 offload one \
    one-fused ddp2 fsdp2 tp2 fsdp2-tp2 fsdp2-fused tp2-fused tp2-float8-fused; do
    expect_equal 1 "$(grep -c "^| $row | [0-9.]* | ok[: ]" page.md)"
  done
  expect_equal 1 "$(grep -c '^| fused | [0-9.]* | ok: 0.0e+00 off single at step 1 (bar 1e-05), 0.0e+00 later (1e-03) |$' page.md)"
  expect_equal 1 "$(grep -c '^| bf16 | [0-9.]* | ok |$' page.md)"
  # The page is for other machines.
  expect_equal 0 "$(grep -c -F -e "$PWD" -e "$checkout" page.md)"
}

other_losses() {
  make_machine <<<'case "$*" in *tensor_parallel_degree=2*) losses=7.6 ;; esac'
  expect 1 gpu_check
  printed=$(cat page.md)
  expect_equal 4 "$(grep -c '| failed: other losses: ' page.md)"
  expect_equal 1 "$(grep -c '^| tp2 .* losses: [0-9.]*e-02 off single at step 1 (bar 1e-06), [0-9.]*e-01 later (1e-05) |$' page.md)"
}

fused_losses() {
  # 0.02 % are what bf16 may make of the first loss, and more than float32 may.
  make_machine <<<'case "$*" in *compile.enable*) losses=$(echo "$losses" | awk "{ for (i = 1; i <= NF; i++) \$i *= 1.00013; print }") ;; esac'
  expect 1 gpu_check --only single,fused,bf16,bf16-fused
  printed=$(cat page.md)
  expect_equal 1 "$(grep -c '^| fused .*failed: other losses: ' page.md)"
  expect_equal 1 "$(grep -c '^| bf16-fused .*| ok: 1.3e-04 off bf16 at step 1 (bar 2e-04), ' page.md)"
}

no_number() {
  make_machine <<<'case "$*" in *float8*) losses=NaN ;; esac'
  expect 1 gpu_check --only float8
  expect_text "failed: a loss that is not a number"
  # A later one, behind which others are equal; and zeros, which kernels that do nothing leave.
  make_machine <<<'case "$*" in *compile.enable*) trap "sed -i s/\\\"step\\\":.9,.\\\"loss\\\":.*}/\\\"loss\\\":NaN}/ \"$folder/metrics.jsonl\"" EXIT ;; esac'
  expect 1 gpu_check --only single,fused
  expect_equal 1 "$(grep -c '^| fused .*failed: a loss that is not a number |$' page.md)"
  make_machine <<<'losses=0.0'
  expect 1 gpu_check --only single,fused
  expect_equal 2 "$(grep -c 'failed: a loss of 0 |$' page.md)"
}

tests_left_out() {
  make_machine <<<''
  printf '#!/bin/sh\necho "[  PASSED  ] 0 tests."\necho "[  SKIPPED ] 1 test, listed below:"\n' >programs/kernels_test
  printf '#!/bin/sh\necho "[  PASSED  ] 0 tests."\n' >programs/train_test
  expect 1 gpu_check --only kernels_test,train_test
  expect_text "kernels_test --gtest_filter=OnGpu/*:KernelsOfTheGpu.*"
  expect_text "| failed: left out 1 test |"
  expect_text "| failed: no test ran |"
  expect_equal 0 "$(grep -c distributed_test page.md)"
}

failing_row() {
  make_machine <<<'case "$*" in *groups_of_one*) echo "a message of $0"; exit 71 ;; esac'
  expect 1 gpu_check
  printed=$(cat page.md)
  expect_text "| exit code 71 |"
  expect_text "    titan_train configs/debug_model.toml --training.device=cuda"
  expect_text "    a message of titan_train
    exit code 71"
  expect_equal 0 "$(grep -c -F -e "$PWD" -e "$checkout" page.md)"
}

short_run() {
  make_machine <<<'case "$*" in *groups_of_one*) echo "{}" >"$folder/metrics.jsonl"; exit 0 ;; esac'
  expect 1 gpu_check --only single,one
  expect_text "failed: 0 losses of 20"
}

refused_card() {
  make_machine <<<'case "$1" in launch) echo "NCCL WARN Duplicate GPU detected : rank 1 and rank 0"; exit 69 ;; esac'
  expect 0 gpu_check
  expect_equal 7 "$(grep -c 'refused by NCCL |$' page.md)"
  printed=$(cat page.md)
  expect_text "Duplicate GPU detected"
}

what_ranks_are_told() {
  make_machine <<<'echo "$NCCL_MAX_CTAS: $*" >>"$ARGUMENTS"'
  ARGUMENTS=$PWD/arguments expect 0 gpu_check --only single,fsdp2
  printed=$(cat arguments)
  expect_text ": configs/debug_model.toml --training.device=cuda --training.steps=20 --training.local_batch_size=8"
  expect_text "2: launch -n 2 configs/debug_model.toml --training.device=cuda --training.steps=20 --training.local_batch_size=4"
  expect_text "--debug.share_gpu --parallelism.data_parallel_replicate_degree=1 --parallelism.data_parallel_shard_degree=2"
}

lost_machine() {
  make_machine <<<'case "$*" in *groups_of_one*) kill -9 $(ps -o ppid= -p $$) ;; esac'
  expect 137 gpu_check --only single,fused,one --log log.txt
  printed=$(cat page.md)
  expect_text "| fused | "
  expect_equal 3 "$(grep -c '^\$ titan_train' log.txt)" # the one that was killed, too
}

wrong_arguments() {
  make_machine <<<''
  expect 64 gpu_check --only single,nothing
  expect_text "there is no row nothing"
  expect 64 gpu_check --page
  expect 64 gpu_check --else
  expect 64 "$checkout/scripts/gpu/check.sh" --packed "$PWD/nowhere"
  expect_text "--pack makes build/gpu.tar.xz, which unpacks to such a folder"
  rm programs/kernels_test
  expect 64 gpu_check
  expect_text "programs holds no kernels_test"
}

check "gpu/check.sh ends with 69 where there is no GPU" no_gpu
check "gpu/check.sh writes a page of all rows" all_rows
check "gpu/check.sh fails when a layout has other losses" other_losses
check "gpu/check.sh holds fused kernels against plain operations of the same precision" fused_losses
check "gpu/check.sh fails when a loss is not a number" no_number
check "gpu/check.sh fails when unit tests are left out or none ran" tests_left_out
check "gpu/check.sh fails when a row does, and shows how it ended" failing_row
check "gpu/check.sh fails when a run ends before its last step" short_run
check "gpu/check.sh takes no for an answer from NCCL about several ranks on one card" refused_card
check "gpu/check.sh gives every row its devices, samples and degrees" what_ranks_are_told
check "gpu/check.sh has written what it knew when it is killed" lost_machine
check "gpu/check.sh refuses rows and arguments that it does not know" wrong_arguments
finish
