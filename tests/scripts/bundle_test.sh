#!/usr/bin/env bash
# What scripts/bundle.sh makes of the built titan_train, and what its start script says when torch is missing.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# The start script with a program in titan_train's place that prints its library path.
make_bundle() {
  mkdir -p "the bundle/lib" "site/torch/lib" site/nvidia/cu13/lib
  cp "$checkout/cmake/start.sh" "the bundle/titan_train"
  # shellcheck disable=SC2016  # expanded when the program runs
  printf '#!/bin/sh\nprintf "%%s" "$LD_LIBRARY_PATH" "[$1]"\n' >"the bundle/lib/titan_train"
  chmod +x "the bundle/lib/titan_train"
  echo "__version__ = '2.11.0+cu130'" >site/torch/version.py
  touch site/torch/lib/libtorch_cpu.so
  unset LD_LIBRARY_PATH TITAN_LIBTORCH
}

start_script() {
  make_bundle
  local path="$PWD/the bundle/lib:$PWD/site/torch/lib:$PWD/site/nvidia/cu13/lib"
  ln -s "$PWD/the bundle/titan_train" link
  TITAN_LIBTORCH=site expect 0 ./link "two words"
  expect_equal "${path}[two words]" "$printed"
  TITAN_LIBTORCH=$PWD/site/torch LD_LIBRARY_PATH=/more expect 0 "the bundle/titan_train" x
  expect_equal "$path:/more[x]" "$printed"
}

start_script_of_another_program() {
  make_bundle
  mv "the bundle/lib/titan_train" "the bundle/lib/another"
  mv "the bundle/titan_train" "the bundle/another"
  TITAN_LIBTORCH=site expect 0 "the bundle/another" x
  expect_text "[x]"
}

start_script_refuses() {
  make_bundle
  TITAN_LIBTORCH=nowhere expect 64 "the bundle/titan_train"
  expect_text "there is no torch in nowhere"
  expect_text "pip install torch==2.11.0"
  echo "__version__ = '2.11.1'" >site/torch/version.py
  TITAN_LIBTORCH=site expect 64 "the bundle/titan_train"
  expect_text "is not torch 2.11.0"
}

whole_bundle() {
  expect 0 "$checkout/scripts/bundle.sh" --allow-newer
  local bundle=${printed##*$'\n'} site
  site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$checkout/build/release/CMakeCache.txt")
  [ -x "$bundle/titan_train" ] && [ -d "$bundle/configs" ] && [ -e "$bundle/LICENSE" ]
  # No library of LibTorch or NVIDIA travels along, and no path of this machine is written into the program.
  expect_equal "" "$(find "$bundle" -name '*torch*.so*' -o -name 'libc10*' -o -name 'libcu*')"
  expect_equal "" "$(grep -l -F -e "$site" -e "$checkout/" "$bundle"/lib/*titan*)"
}

check "the bundle's start script turns TITAN_LIBTORCH into the library path" start_script
check "the bundle's start script starts the program of its own name" start_script_of_another_program
check "the bundle's start script says how to get the torch it needs" start_script_refuses
if [ -x "$checkout/build/release/titan_train" ]; then
  check "bundle.sh makes a folder that runs elsewhere" whole_bundle
else
  skip "bundle.sh makes a folder that runs elsewhere" "titan_train is not built"
fi
finish
