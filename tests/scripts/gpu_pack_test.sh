#!/usr/bin/env bash
# What scripts/gpu/first.sh --pack puts into build/gpu.tar.xz, of a checkout whose build and bundle are stand-ins.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"
unset TITAN_PARQUET TITAN_LIBTORCH TITAN_CUDA CUDAARCHS

# A checkout that was built to read Parquet, with a bundle as scripts/bundle.sh makes it there.
make_checkout() {
  root=$PWD/my\ titan build="$PWD/my titan/build/release" bundle="$PWD/my titan/build/bundle/titan-1"
  mkdir -p "$build" "$bundle/lib" "$bundle/licences" site/torch/lib
  cp -r "$checkout/scripts" "$root/"
  program ninja </dev/null
  export PATH=$PWD/bin:$PATH
  touch "$build/build.ninja" site/torch/lib/libtorch_cpu.so
  printf '%s\n' "TITAN_LIBTORCH_FOUND:INTERNAL=$PWD/site" TITAN_PARQUET:BOOL=ON >"$build/CMakeCache.txt"
  echo "libtorch= cuda=AUTO nvcc=$(command -v nvcc || true) parquet=ON" >"$build/.configured-with"
  for name in kernels_test bench_device_ceiling bench_kernel_rates; do cp "$(type -P true)" "$build/$name"; done
  printf '#!/bin/sh\n' >"$root/scripts/setup.sh"
  printf '#!/bin/sh\necho "%s"\n' "$bundle" >"$root/scripts/bundle.sh"
  touch "$bundle/titan_train" "$bundle"/lib/{titan_train,libtitan.so,libtitan_cuda.so,libz.so.1} "$bundle/licences/zlib1g.txt"
}

without_parquet() {
  make_checkout
  expect 0 "$root/scripts/gpu/first.sh" --pack
  expect_equal "$root/build/gpu.tar.xz" "${printed##*$'\n'}"
  local plain
  plain=$(python3 -m tarfile -l "$root/build/gpu.tar.xz" | sed "s, *$,," | sort)
  for name in gpu/titan_train gpu/kernels_test gpu/lib/kernels_test gpu/lib/libtitan_cuda.so gpu/lib/libz.so.1 gpu/licences/zlib1g.txt gpu/commit \
    gpu/scripts/gpu/first.sh gpu/scripts/gpu/baseline.py; do
    expect_equal "$name" "$(grep -Fx "$name" <<<"$plain")"
  done
  # No package of at most 16 MiB holds this.
  head -c 17000000 /dev/urandom >"$bundle/lib/libarrow.so.2600"
  touch "$bundle"/lib/lib{parquet.so.2600,titan_parquet.so} "$bundle/licences/pyarrow.txt"
  expect 0 "$root/scripts/gpu/first.sh" --pack
  expect_equal "$plain" "$(python3 -m tarfile -l "$root/build/gpu.tar.xz" | sed "s, *$,," | sort)"
}

too_large() {
  make_checkout
  head -c 17000000 /dev/urandom >"$bundle/lib/libtitan.so"
  expect 70 "$root/scripts/gpu/first.sh" --pack
  expect_text "more than 16777216"
}

check "the package for a GPU holds no library for Parquet, whatever the build reads" without_parquet
check "a package for a GPU of more than 16 MiB is refused" too_large
finish
