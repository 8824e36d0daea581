#!/usr/bin/env bash
# What scripts/wheel.sh makes: a wheel that pip installs beside torch, with the licence of every library in it.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# Made by the first check, used by the others.
wheels=$checkout/build/wheel

make_wheel() {
  rm -rf "$wheels"
  expect 0 "$checkout/scripts/wheel.sh" --allow-newer
  wheel=${printed##*$'\n'}
  [ -e "$wheel" ]
  case $wheel in
    "$wheels"/titan_train-*-py3-none-manylinux_2_*_x86_64.whl) ;;
    *) echo "an odd name: $wheel"; return 1 ;;
  esac
  python3 -m zipfile -e "$wheel" unpacked
  grep -x 'Requires-Dist: torch==2.11.0' unpacked/*.dist-info/METADATA
  grep -q '^TITAN_PARQUET:BOOL=ON' "$checkout/build/release/CMakeCache.txt" ||
    expect_equal "" "$(find unpacked -name '*parquet*' -o -name '*arrow*')"
  expect_equal "" "$(find unpacked -name '*torch*.so*' -o -name 'libc10*' -o -name 'libcu*')"
}

every_library_has_its_licence() {
  python3 -m zipfile -e "$wheels"/*.whl unpacked
  local library
  for library in unpacked/titan_train/lib/*.so.*; do
    grep "^${library##*/}  " unpacked/titan_train/licences/libraries.txt
  done
  while read -r _ text; do
    [ -s "unpacked/titan_train/licences/$text" ] || { echo "$text is missing"; return 1; }
  done <unpacked/titan_train/licences/libraries.txt
}

a_library_without_a_licence_is_named() {
  mkdir lib
  echo >lib/libunknown.so.1
  expect 69 python3 "$checkout/scripts/licences.py" lib texts
  expect_text "no licence text was found for libunknown.so.1"
}

installed_program_trains() {
  local site
  site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$checkout/build/release/CMakeCache.txt")
  python3 -m venv environment
  echo "$site" >"$(environment/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
  # Without dependencies: torch is there, what its Python part imports is not needed.
  environment/bin/pip --quiet --disable-pip-version-check install --no-index --no-deps "$wheels"/*.whl
  local package
  package=$(environment/bin/python -c 'import os, titan_train; print(os.path.dirname(titan_train.__file__))')
  mkdir empty
  cd empty
  unset TITAN_LIBTORCH LD_LIBRARY_PATH
  local words=("$package/configs/debug_model.toml" --training.steps=3 --metrics.log_freq=1 --job.dump_folder=outputs)
  expect 64 ../environment/bin/titan_train none.toml
  expect_text "name a TOML file, such as /"
  expect_text "/titan_train/configs/debug_model.toml"
  # Three steps, compared with the build: that a build gives README's losses is not this check's subject.
  expect 0 ../environment/bin/titan_train "${words[@]}"
  expect 0 "$checkout/build/release/titan_train" "${words[@]}" --job.dump_folder=others
  expect_equal "$(grep -o '"loss":[^,]*' others/metrics.jsonl)" "$(grep -o '"loss":[^,]*' outputs/metrics.jsonl)"
  if [ -e "$package/lib/libtitan_parquet.so" ]; then
    printf 'PAR1\0\0\0\0PAR1' >empty.parquet
    expect 65 ../environment/bin/titan_train data peek --dataset-path empty.parquet
    expect_text "its footer is damaged"  # so the libraries were found and loaded
  fi
  rm ../environment/lib/python3*/site-packages/torch.pth
  expect 64 ../environment/bin/titan_train --version
  expect_text "pip install torch==2.11.0"
}

start_script_refuses_an_old_runtime() {
  mkdir -p bin "bundle/lib"
  cp "$checkout/cmake/start.sh" bundle/titan_train
  echo "no version of 2022" >old.so
  # shellcheck disable=SC2016  # expanded when the stand-in runs
  printf '#!/bin/sh\necho "	libstdc++.so.6 (libc6,x86-64) => %s"\n' "$PWD/old.so" >bin/ldconfig
  chmod +x bin/ldconfig
  unset LD_LIBRARY_PATH
  PATH=$PWD/bin:$PATH expect 69 bundle/titan_train
  expect_text "old.so is older than that of g++ 12"
}

start_script_uses_the_libtorch_beside_it() {
  mkdir -p bundle/lib
  cp "$checkout/cmake/start.sh" bundle/titan_train
  # shellcheck disable=SC2016  # expanded when it runs
  printf '#!/bin/sh\necho "started with $1"\n' >bundle/lib/titan_train
  chmod +x bundle/lib/titan_train
  touch bundle/lib/libtorch_cpu.so
  TITAN_LIBTORCH=nowhere expect 0 bundle/titan_train one
  expect_text "started with one"
}

check "the start script names a C++ runtime that is too old" start_script_refuses_an_old_runtime
check "the start script of a self-contained bundle asks for no Python" start_script_uses_the_libtorch_beside_it
check "a library without a licence text is named" a_library_without_a_licence_is_named
if [ -x "$checkout/build/release/titan_train" ]; then
  check "wheel.sh makes a wheel that needs torch 2.11.0 and holds none of it" make_wheel
  check "every library in the wheel has its licence" every_library_has_its_licence
  check "the installed program trains as the built one does" installed_program_trains
else
  skip "wheel.sh makes a wheel" "titan_train is not built"
fi
finish
