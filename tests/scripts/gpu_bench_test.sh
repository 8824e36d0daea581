#!/usr/bin/env bash
# What scripts/gpu/bench.sh makes of a machine and of what the programs print, with stand-ins for both.
# shellcheck disable=SC2016  # what stand-ins do is expanded when they run
# With --full only: tests a benchmark.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# A folder of programs that take 0.5 s a step, or do what the lines on standard input say, and a card.
make_machine() {
  mkdir programs
  program nvidia-smi <<<'echo "NVIDIA H200, 580.1, 143771 MiB"'
  export PATH=$PWD/bin:$PATH
  cat >programs/titan_train <<'STOP'
#!/bin/sh
steps=16 seconds=0.5
case $1 in
  plan)
    echo '{"fits": true, "needed_bytes": 1, "tokens_per_second_per_gpu": 17000, "seconds": {"products": 0.2, "swiglu": 0.02}}'
    exit
    ;;
  profile) exec cat "$3" ;;
esac
for word in "$@"; do
  case $word in
    --job.dump_folder=*) folder=${word#*=} ;;
    --training.steps=*) steps=${word#*=} ;;
    --compile.enable) seconds=0.4 ;;
  esac
done
. "$(dirname "$0")/odd"
echo "2026-01-01 00:00:00 - root - INFO - Attention by cuDNN: 1.00 ms forward and backward"
step=1
while [ $step -le $steps ]; do
  loss=$(sed -n 's/^"cpu": \[\(.*\)\].*/\1/p' "$LOSSES" | cut -d, -f$step)
  echo "{\"step\": $step, \"loss\": ${loss:-7.5}, \"step_seconds\": $seconds, \"memory_peak_bytes\": 107374182400, \"mfu_percent\": 55.5}"
  step=$((step + 1))
done >"$folder/metrics.jsonl"
mkdir -p "$folder/profile_traces/iteration_20"
cat >"$folder/profile_traces/iteration_20/rank0_trace.json" <<'SUMMARY'
1 step, 500.000 ms; the main thread is in operations 9.0% of it, the device busy 98.0%

Time by kind, on the device                                                 calls          ms    share
  matrix products                                                             900     300.125    60.0%
  elementwise and reductions                                                 1200      90.000    18.0%
  gaps                                                                             10.000     2.0%

Time by part, on the device                                                 calls          ms    share
  optimizer                                                                     1      70.000    14.0%
SUMMARY
STOP
  cat >programs/odd
  printf '#!/bin/sh\necho "[  PASSED  ] 3 tests."\n' >programs/kernels_test
  cat >programs/bench_kernel_rates <<'STOP'
#!/bin/sh
echo '{"copy_bytes_per_second": 4e12, "kernels": [{"name": "a norm", "bytes": 268e6, "seconds": 75e-6},' \
  '{"name": "a cast", "bytes": 134e6, "seconds": 50e-6}]}'
STOP
  printf '#!/bin/sh\necho %s\n' "'"'{"product_seconds": 0.2, "attention_seconds": 0.1, "copy_bytes_per_second": 4e12}'"'" \
    >programs/bench_device_ceiling
  chmod +x programs/*
}

export LOSSES=$checkout/scripts/gpu/cpu_losses.json
gpu_bench() { TMPDIR=$PWD/programs "$checkout/scripts/gpu/bench.sh" --packed "$PWD/programs" --page "$PWD/page.md" "$@"; }

no_gpu() {
  program nvidia-smi <<<'exit 9'
  PATH=$PWD/bin:$PATH expect 69 "$checkout/scripts/gpu/bench.sh"
  expect_text "there is no GPU here"
}

all_rows() {
  make_machine <<<''
  expect 0 gpu_bench --commit abc123
  printed=$(cat page.md)
  expect_text "Commit abc123; NVIDIA H200, 580.1, 143771 MiB; "
  for row in 8b-bf16-plain 8b-float8-fused 3b-bf16-fused 1b-float8-plain; do
    expect_equal 1 "$(grep -c "^| $row | [0-9.]* | [0-9,]* tokens/s" page.md)"
  done
  # 8192 tokens in 0.5 s and 0.4 s; 8192 / (0.3 s + bytes of SwiGLU at 4 TB/s).
  expect_text "16,384 tokens/s (16,384 – 16,384), 100.0 GiB, MFU 55.5 %, likely 17,000, 63.0 % of the ceiling's 26,004 |"
  expect_text "* 8b, fused over plain, bf16: 1.250"
  expect_text "* 8b, float8 over bf16, fused: 1.000"
  expect_text "| kernels_test | "
  expect_text "| one | "
  expect_text "in 8B's shapes, against a copy's 4.00 TB/s:"
  expect_text "| a norm | 0.268 | 0.075 | 3.57 | 89.3 | met |"
  expect_text "| a cast | 0.134 | 0.050 | 2.68 | 67.0 | missed |"
  expect_text "| ok: a step's products 200.0 ms, attention 100.0 ms, a copy 4.00 TB/s"
  expect_text "8b-bf16-plain: Attention by cuDNN: 1.00 ms forward and backward"
  expect_text "8b-bf16-traced, one step under the profiler, ms: matrix products 300.1, elementwise and reductions 90.0, gaps 10.0"
  # The page is for other machines.
  expect_equal 0 "$(grep -c -F -e "$PWD" -e "$checkout" page.md)"
}

failing_row() {
  make_machine <<<'case "$*" in *float8*) echo "a message of $0"; exit 71 ;; esac'
  expect 1 gpu_bench --only 8b-bf16-fused,8b-float8-fused
  printed=$(cat page.md)
  expect_text "| exit code 71 |"
  expect_text "    a message of titan_train
    exit code 71"
}

failing_checks() {
  make_machine <<<''
  printf '#!/bin/sh\necho "[  PASSED  ] 1 test."\necho "[  SKIPPED ] 1 test, listed below:"\n' >programs/kernels_test
  printf '#!/bin/sh\necho "error: a message of $0"; exit 69\n' >programs/bench_kernel_rates
  expect 1 gpu_bench --only 8b-bf16-plain
  printed=$(cat page.md)
  expect_text "| failed: left out 1 test |"
  expect_text "| exit code 69 |"
  printf '#!/bin/sh\nfor i in 1 2 3 4 5; do echo "[ RUN      ] Case.$i"; seq -f "line %%g of $i" 40; echo "[  FAILED  ] Case.$i (9 ms)"; done; exit 1\n' \
    >programs/kernels_test
  expect 1 gpu_bench --only 8b-bf16-plain
  printed=$(cat page.md)
  expect_text "    [ RUN      ] Case.1
    line 1 of 1"
  expect_text "    line 10 of 3
    … 30 lines
    [  FAILED  ] Case.3 (9 ms)
    …"
  expect_equal 0 "$(grep -c "line 1 of 4" page.md)"
  expect_text "    bench_kernel_rates cuda 4096 14336 32 8 128256 8192

    error: a message of bench_kernel_rates
    exit code 69"
}

short_run() {
  make_machine <<<'case "$*" in *steps=16*) steps=9 ;; esac'
  expect 1 gpu_bench --only 8b-bf16-plain
  expect_text "3 steps of 10 were counted"
}

what_rows_are_told() {
  make_machine <<<'echo "$*" >>"$ARGUMENTS"'
  ARGUMENTS=$PWD/arguments expect 0 gpu_bench --only 3b-float8-fused,8b_16_layers-bf16-plain --out "$PWD/out"
  printed=$(cat arguments)
  expect_text "--model.name=llama3_2 --model.flavor=3B"
  expect_text "--model.override.vocab_size=128256 "
  expect_text "--training.gradient_dtype=bfloat16 --model.converters=quantize.linear.float8 --compile.enable"
  expect_text "--activation_checkpoint.mode=none --model.override.n_layers=16"
}

# Libraries say more behind a result, and a program may write none.
odd_outputs() {
  make_machine <<<'case "$*" in *float8*) trap "rm \"\$folder/metrics.jsonl\"" EXIT ;; esac'
  printf 'echo "a warning of a library"\n' | tee -a programs/bench_kernel_rates >>programs/bench_device_ceiling
  expect 1 gpu_bench --only 8b-bf16-fused,8b-float8-fused --log log.txt
  printed=$(cat page.md)
  expect_text "| 20,480 tokens/s"
  expect_text "| a norm | 0.268 |"
  expect_text "| ok: a step's products 200.0 ms, attention 100.0 ms, a copy 4.00 TB/s"
  expect_text "| what it wrote could not be read: FileNotFoundError"
  expect_equal 3 "$(grep -c "a warning of a library" log.txt)"
  printf '#!/bin/sh\necho nothing\n' >programs/bench_kernel_rates
  expect 1 gpu_bench --only 8b-bf16-fused
  expect_text "what it wrote could not be read: ValueError no line is a JSON object"
}

lost_machine() {
  make_machine <<<'case "$*" in *float8*) kill -9 $(ps -o ppid= -p $$) ;; esac'
  expect 137 gpu_bench --only 8b-bf16-fused,8b-float8-fused
  printed=$(cat page.md)
  expect_text "| 20,480 tokens/s"
}

lost_trace() {
  make_machine <<<'trap "rm -r \"\$folder/profile_traces\"" EXIT'
  expect 1 gpu_bench --only 8b-bf16-traced
  printed=$(cat page.md)
  expect_text "| the traced step could not be read; 20,480 tokens/s"
  expect_text "    the traced step could not be read"
}

wrong_arguments() {
  make_machine <<<''
  expect 64 gpu_bench --only 8b-bf16-plain,nothing
  expect_text "there is no row nothing"
  expect 64 gpu_bench --page
  expect 64 gpu_bench --else
  expect 64 "$checkout/scripts/gpu/bench.sh" --packed "$PWD/nowhere"
  expect_text "--pack makes build/gpu.tar.xz, which unpacks to such a folder"
  rm programs/bench_kernel_rates
  expect 64 gpu_bench
  expect_text "programs holds no bench_kernel_rates"
}

check "gpu/bench.sh ends with 69 where there is no GPU" no_gpu
check "gpu/bench.sh writes a page of all rows, ratios and ceilings" all_rows
check "gpu/bench.sh fails when a row does, and shows how it ended" failing_row
check "gpu/bench.sh fails when kernels were not tested or not measured" failing_checks
check "gpu/bench.sh fails when a run ends before its last step" short_run
check "gpu/bench.sh reads results that libraries talk behind, and names outputs that it cannot read" odd_outputs
check "gpu/bench.sh has written what it knew when it is killed" lost_machine
check "gpu/bench.sh keeps a row's speed and fails when its trace is lost" lost_trace
check "gpu/bench.sh gives every row its model and precision" what_rows_are_told
check "gpu/bench.sh refuses rows and arguments that it does not know" wrong_arguments
finish
