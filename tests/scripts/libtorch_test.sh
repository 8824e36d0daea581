#!/usr/bin/env bash
# Where scripts/libtorch.sh finds LibTorch, and how it fetches it, from a folder of tiny wheels instead of the network.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"
libtorch=$checkout/scripts/libtorch.sh
other_packages='nvidia_cublas-13.1.0.3 nvidia_cudnn_cu13-9.19.0.56 nvidia_nccl_cu13-2.28.9 nvidia_cufft-12.0.0.61
  nvidia_cusparselt_cu13-0.8.0 nvidia_cusparse-12.6.3.3 nvidia_nvshmem_cu13-3.4.5 nvidia_curand-10.4.0.35
  nvidia_nvjitlink-13.0.88 nvidia_cufile-1.15.1.6 nvidia_cusolver-12.0.4.66 nvidia_cuda_nvrtc-13.0.88
  nvidia_cuda_cupti-13.0.85'

# make_site FOLDER VERSION: the files by which a torch is recognised.
make_site() {
  mkdir -p "$1/torch/lib"
  echo "__version__ = '$2+cu130'" >"$1/torch/version.py"
  touch "$1"/torch/__init__.py "$1"/torch/lib/{libc10.so,libtorch_cpu.so,libtorch_cuda.so}
}

# make_wheel NAME-VERSION FILE...: a wheel in ./wheels with these files of the current folder.
make_wheel() {
  python3 - "$@" <<'END'
import pathlib, sys, zipfile
stem, *files = sys.argv[1:]
name, version = stem.rsplit("-", 1)
pathlib.Path("wheels").mkdir(exist_ok=True)
with zipfile.ZipFile(f"wheels/{stem}-py3-none-any.whl", "w") as wheel:
    for file in files:
        wheel.write(file)
    info = f"{stem}.dist-info"
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
END
}

# An index of wheels, an empty cache, and a python3 whose own torch is another version.
make_index() {
  make_site . 2.11.0
  mkdir -p nvidia/cu13/lib
  touch nvidia/cu13/lib/libcudart.so.13
  make_wheel torch-2.11.0 torch/version.py torch/__init__.py torch/lib/*.so
  make_wheel nvidia_cuda_runtime-13.0.96 nvidia/cu13/lib/libcudart.so.13
  local package
  for package in $other_packages; do
    touch "nvidia/cu13/lib/$package.so"
    make_wheel "$package" "nvidia/cu13/lib/$package.so"
  done
  make_site "another python" 2.9.1
  unset TITAN_LIBTORCH
  export PYTHONPATH="$PWD/another python" TITAN_CACHE="$PWD/the cache"
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=file://${PWD// /%20}/wheels
}

named_folder() {
  make_site "my site" 2.11.0
  make_site venv/lib/python3.11/site-packages 2.11.0
  local form
  for form in "my site" "my site/torch"; do
    TITAN_LIBTORCH=$form expect 0 "$libtorch" --cpu
    expect_equal "$PWD/my site" "$printed"
  done
  TITAN_LIBTORCH=venv expect 0 "$libtorch" --cpu
  expect_equal "$PWD/venv/lib/python3.11/site-packages" "$printed"
}

wrong_folder() {
  make_site old 2.10.0
  TITAN_LIBTORCH=old expect 64 "$libtorch"
  expect_text "holds torch 2.10.0, not a complete torch 2.11.0"
  TITAN_LIBTORCH=nowhere expect 64 "$libtorch"
  expect_text "holds no torch"
  make_site "no cuda" 2.11.0
  rm "no cuda/torch/lib/libtorch_cuda.so"
  TITAN_LIBTORCH="no cuda" expect 0 "$libtorch" --cpu
  TITAN_LIBTORCH="no cuda" expect 64 "$libtorch" --cuda
  expect_text "libtorch_cuda.so is missing"
}

installed_python() {
  make_site "site of python" 2.11.0
  echo 'raise SystemExit("torch was imported")' >"site of python/torch/__init__.py"
  unset TITAN_LIBTORCH
  PYTHONPATH="$PWD/site of python" expect 0 "$libtorch" --cpu
  expect_equal "$PWD/site of python" "$printed"
}

fetched_once() {
  make_index
  expect 0 "$libtorch" --cpu
  expect_text "python3 has torch 2.9.1"
  expect_text "Fetching LibTorch 2.11.0 for cpu"
  local site
  site=$("$libtorch" --cpu 2>/dev/null)
  [ -e "$site/torch/lib/libtorch_cpu.so" ] && [ -e "$site/nvidia/cu13/lib/libcudart.so.13" ]
  [ ! -e "$site/nvidia/cu13/lib/nvidia_cublas-13.1.0.3.so" ]
  rm -r wheels
  expect 0 "$libtorch" --cpu
  [ "${printed##*$'\n'}" = "$site" ]
}

cuda_adds() {
  make_index
  expect 0 "$libtorch" --cpu
  rm wheels/torch-*
  expect 0 "$libtorch" --cuda
  local site=${printed##*$'\n'} package
  [ -e "$site/torch/lib/libtorch_cuda.so" ]
  for package in $other_packages; do
    [ -e "$site/nvidia/cu13/lib/$package.so" ]
  done
}

goes_on() {
  make_index
  mv wheels/nvidia_cuda_cupti* .
  expect 69 "$libtorch" --cpu
  expect_text "nvidia-cuda-cupti==13.0.85 could not be fetched"
  expect_text "TITAN_LIBTORCH=FOLDER"
  mv nvidia_cuda_cupti* wheels/
  rm wheels/torch-*
  expect 0 "$libtorch" --cpu
}

interrupted() {
  make_index
  # pip ends with a message and a plain failure when it is interrupted, here before the second package.
  local python
  python=$(command -v python3)
  program python3 <<END
case "\$*" in *pip*download*cuda-runtime*) trap 'echo "ERROR: Operation cancelled by user"; exit 1' INT; touch "$PWD/second"; sleep 60 ;; esac
exec $python "\$@"
END
  PATH=$PWD/bin:$PATH expect_interrupted second "$libtorch" --cpu
  expect_text "2 of 3: nvidia-cuda-runtime==13.0.96"
  case $printed in *"could not be fetched"*) echo "$printed"; return 1 ;; esac
  rm wheels/torch-*
  expect 0 "$libtorch" --cpu
}

interrupted_copy() {
  make_index
  expect 0 "$libtorch" --cpu
  local folder=${printed##*$'\n'}
  mkdir -p "${folder%-cpu}-cuda.partial.copy/torch"
  expect 69 env PIP_FIND_LINKS= "$libtorch" --cuda
  [ -e "${folder%-cpu}-cuda.partial/torch/version.py" ]
}

damaged_wheel() {
  make_index
  local file=nvidia/cu13/lib/nvidia_cuda_cupti-13.0.85.so
  echo "as it was made" >$file
  make_wheel nvidia_cuda_cupti-13.0.85 $file
  sed -i 's/as it was made/as it was sent/' wheels/nvidia_cuda_cupti-*
  expect 69 "$libtorch" --cpu
  expect_text "nvidia-cuda-cupti==13.0.85 could not be fetched"
  make_wheel nvidia_cuda_cupti-13.0.85 $file
  expect 0 "$libtorch" --cpu
  expect_equal "as it was made" "$(cat "the cache/libtorch-2.11.0-"*"-cpu/$file")"
}

two_at_once() {
  make_index
  "$libtorch" --cpu >first 2>first.log &
  local other=$!
  "$libtorch" --cpu >second 2>second.log
  wait "$other"
  expect_equal "$(cat first)" "$(cat second)"
  # One of the two fetched, the other found it done.
  expect_equal 1 "$(cat first.log second.log | grep -c 'Fetching LibTorch')"
}

check "libtorch.sh takes a site-packages folder, a torch folder or a virtual environment" named_folder
check "libtorch.sh refuses a named folder of another version or without the libraries" wrong_folder
check "libtorch.sh finds the torch of python3 without importing it" installed_python
check "libtorch.sh fetches only what a CPU build needs, and only once" fetched_once
if [ -n "${TITAN_TEST_FULL:-}" ]; then
  check "libtorch.sh adds NVIDIA's libraries to what is in the cache" cuda_adds
else
  skip "libtorch.sh adds NVIDIA's libraries to what is in the cache" "a long test"
fi
check "libtorch.sh says what helps when fetching fails, and later goes on where it was" goes_on
check "libtorch.sh that is interrupted calls it no failure and keeps the packages it has" interrupted
check "libtorch.sh begins the copy of the CPU packages anew when one was interrupted" interrupted_copy
check "libtorch.sh does not take a damaged wheel for one that is there" damaged_wheel
check "libtorch.sh run by two checkouts at once fetches once" two_at_once
finish
