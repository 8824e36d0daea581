#!/usr/bin/env bash
# The file that scripts/gpu/first.sh --pack makes, unpacked and started as on a machine that has nothing else, on the mock GPU.
# With --full only: packs and starts the built programs.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

packed_file() {
  local mock=$checkout/build/release/mock_cuda packed site python
  expect 0 "$checkout/scripts/gpu/first.sh" --pack
  packed=${printed##*$'\n'}
  [ "$(stat -c %s "$packed")" -le $((16 * 1024 * 1024)) ]
  site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$checkout/build/release/CMakeCache.txt")
  python=$(dirname "$(python3 -c 'import sys; print(sys.executable)')")
  python3 -m tarfile -e "$packed" .
  chmod -R a-x,u+X gpu # what a copy may lose
  # The folders of the mock come behind those of the start script.
  expect 1 env -i PATH="$python:/usr/bin:/bin" TMPDIR="$PWD" PYTHONPATH="$site" \
    MOCK_CUDA_LEDGER="$PWD" MOCK_CUDA_HOLLOW=1 MOCK_CUDA_MIB=81040 LD_LIBRARY_PATH="$mock" LD_PRELOAD="$mock/libmock_cuda.so" \
    unshare -rn bash gpu/scripts/gpu/first.sh --out out --only machine,single,1b-bf16-traced,8b_16_layers-bf16-traced
  for row in 1b-bf16-traced 8b_16_layers-bf16-traced; do
    expect_equal 1 "$(grep -c "\"row\": \"$row\", \"verdict\": \"ok\"" out/results.jsonl)"
  done
  # It trained; the mock's losses are none.
  expect_equal 1 "$(grep -c '"row": "single", "verdict": "failed: a loss of 0"' out/results.jsonl)"
  expect_equal "$(git -C "$checkout" rev-parse --short HEAD)" "$(sed -n 's/^Commit \([0-9a-f]*\);.*/\1/p' out/page.md)"
  [ -s out/trace-8b_16_layers-bf16-traced.json.gz ]
}

name="the file that gpu/first.sh --pack makes is small, and starts alone, without a network"
if [ -e "$checkout/build/release/mock_cuda/libmock_cuda.so" ] && unshare -rn true 2>/dev/null; then
  check "$name" packed_file
else
  skip "$name" "the program is built without CUDA, or there is no network namespace here"
fi
finish
