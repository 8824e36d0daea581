#!/usr/bin/env bash
# Builds what first.sh, bench.sh and check.sh run. With "pack" it also makes build/gpu.tar.xz, which holds all that a machine
# with Python's torch needs, these scripts included, and prints its path.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

readonly tests=(kernels_test bench_device_ceiling bench_kernel_rates) most_bytes=$((16 * 1024 * 1024))
readonly folder=$TITAN_ROOT/build/gpu packed=$TITAN_ROOT/build/gpu.tar.xz

"$TITAN_ROOT/scripts/setup.sh"
build_targets titan_program "${tests[@]}"
[ "${1:-}" = pack ] || exit 0

bundle=$("$TITAN_ROOT/scripts/bundle.sh" --allow-newer | tail -n 1)
rm -rf "$folder" "$packed"
cp -r "$bundle" "$folder"
for name in "${tests[@]}"; do
  strip -o "$folder/lib/$name" "$TITAN_BUILD/$name"
  cp "$folder/titan_train" "$folder/$name" # the start script starts what it is named after
done
mkdir -p "$folder/scripts"
cp -r "$TITAN_ROOT/scripts/gpu" "$folder/scripts"
git -C "$TITAN_ROOT" rev-parse --short HEAD >"$folder/commit" 2>/dev/null || printf unknown >"$folder/commit"
# Without what reads Parquet files, which is opened for them only and would be 12 MB of the package.
tar -C "$TITAN_ROOT/build" --exclude={__pycache__,'lib*parquet*','libarrow*',pyarrow.txt} --owner=0 --group=0 -c gpu |
  python3 -c 'import lzma, shutil, sys
with lzma.open(sys.argv[1], "wb", preset=9) as packed:
    shutil.copyfileobj(sys.stdin.buffer, packed)' "$packed"
size=$(stat -c %s "$packed")
[ "$size" -le "$most_bytes" ] || fail 70 "$packed has $size bytes, more than $most_bytes"
printf '%s\n' "$packed"
