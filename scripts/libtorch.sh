#!/usr/bin/env bash
# Prints the folder that holds LibTorch (torch/ and nvidia/ as a Python installation lays them out), fetching it when
# needed: TITAN_LIBTORCH, else the torch of python3, else a cache that all checkouts share.
#   scripts/libtorch.sh --cpu     what a build without CUDA needs: 0.6 GB to fetch, 1.2 GB on disk (the default)
#   scripts/libtorch.sh --cuda    with NVIDIA's libraries: 2.2 GB to fetch, 3.9 GB on disk
# The cache is TITAN_CACHE, by default the folder titan in XDG_CACHE_HOME or ~/.cache.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly version_needed=2.11.0
# What libtorch_cpu.so needs beside itself, and what libtorch_cuda.so needs on top: the versions torch 2.11.0 names.
readonly cpu_packages='torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85'
readonly cuda_packages='nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9
  nvidia-cufft==12.0.0.61 nvidia-cusparselt-cu13==0.8.0 nvidia-cusparse==12.6.3.3 nvidia-nvshmem-cu13==3.4.5
  nvidia-curand==10.4.0.35 nvidia-nvjitlink==13.0.88 nvidia-cufile==1.15.1.6 nvidia-cusolver==12.0.4.66
  nvidia-cuda-nvrtc==13.0.88'

# torch_version FOLDER: the version of the torch package in FOLDER without its build suffix; nothing when it has none.
torch_version() {
  sed -n "s/^__version__ *= *['\"]\([0-9.]*\).*/\1/p" "$1/torch/version.py" 2>/dev/null || true
}

# has_libraries FOLDER: the libraries that this kind of build links are there.
has_libraries() {
  local library libraries='torch/lib/libc10.so torch/lib/libtorch_cpu.so'
  [ "$kind" = cpu ] || libraries+=' torch/lib/libtorch_cuda.so nvidia/cu13/lib/libcudart.so.13'
  for library in $libraries; do
    [ -e "$1/$library" ] || { say "$1/$library is missing"; return 1; }
  done
}

# site_of PATH: the site-packages folder meant by PATH: that folder, its torch folder or a virtual environment.
site_of() {
  local candidate
  for candidate in "$1" "$1"/lib/python3*/site-packages; do
    [ ! -e "$candidate/torch/version.py" ] || { (cd -- "$candidate" && pwd -P); return; }
  done
  [ ! -e "$1/version.py" ] || [ ! -d "$1/lib" ] || (cd -- "$1/.." && pwd -P)
}

use_named_folder() {
  local site version
  site=$(site_of "$TITAN_LIBTORCH")
  version=${site:+$(torch_version "$site")}
  if [ "$version" = "$version_needed" ] && has_libraries "$site"; then
    printf '%s\n' "$site"
    exit 0
  fi
  version=${version:+torch $version}
  fail 64 "TITAN_LIBTORCH=$TITAN_LIBTORCH holds ${version:-no torch}, not a complete torch $version_needed" \
    "Name the site-packages folder of a Python torch $version_needed, or unset TITAN_LIBTORCH to have one fetched."
}

# Looks without importing torch, which would take seconds.
use_installed_python() {
  local site version
  site=$(python3 -c 'import importlib.util, os, sys
sys.path = [folder for folder in sys.path if folder]  # not the current folder
spec = importlib.util.find_spec("torch")
print(os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else "")' 2>/dev/null || true)
  [ -n "$site" ] || return 0
  version=$(torch_version "$site")
  if [ "$version" != "$version_needed" ]; then
    say "python3 has torch ${version:-of unknown version} in $site: not used, $version_needed is needed"
  elif has_libraries "$site"; then
    printf '%s\n' "$site"
    exit 0
  fi
}

# use_cache: a complete folder in the cache; one with CUDA serves a build without it too.
use_cache() {
  local folder
  for folder in "$cache_stem-$kind" "$cache_stem-cuda"; do
    [ ! -e "$folder/torch/version.py" ] || { printf '%s\n' "$folder"; exit 0; }
  done
}

require_space() {
  local megabytes=$1 free
  free=$(df -Pm "$TITAN_CACHE" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$megabytes" ] || fail 69 "$TITAN_CACHE has $free MB free, fetching LibTorch needs $megabytes MB" \
    "Make room, or name a folder on a larger disk with TITAN_CACHE."
}

# add_package NAME==VERSION PLACE: into $partial. What is there is not fetched again: an interrupted run resumes.
add_package() {
  local package=$1 mark=$partial/.fetched/$1
  [ ! -e "$mark" ] || return 0
  say "  $2: $package"
  mkdir -p "$partial/.fetched"
  unpack_wheel "$package" "$partial" || fail 69 "$package could not be fetched with pip (its message is above)" \
    "Without a network, one of these helps:" \
    "- TITAN_LIBTORCH=FOLDER, the site-packages folder of any Python torch $version_needed" \
    "- a copy of ${cache_stem}-${kind} from another machine, at the same place" \
    "- pip's own settings: a proxy (https_proxy), a mirror (PIP_INDEX_URL), a folder of wheels (PIP_FIND_LINKS)"
  rm -rf "$partial"/torch/bin/{ptxas,protoc*} "$partial/torch/test"
  : >"$mark"
}

fetch() {
  local package packages=$cpu_packages number=0 megabytes=2200 text='0.6 GB to fetch once, 1.2 GB on disk'
  partial=$cache_stem-$kind.partial
  if [ "$kind" = cuda ]; then
    packages="$cpu_packages $cuda_packages" megabytes=5500 text='2.2 GB to fetch once, 3.9 GB on disk'
  fi
  [ -d "$partial" ] || require_space "$megabytes"
  # What the CPU folder has already is linked, not fetched again.
  if [ "$kind" = cuda ] && [ ! -d "$partial" ] && [ -d "$cache_stem-cpu" ]; then
    rm -rf "$partial.copy" # half of one, after an interruption
    cp -al "$cache_stem-cpu" "$partial.copy"
    mv "$partial.copy" "$partial"
  fi
  say "Fetching LibTorch $version_needed for $kind from Python's package index into $TITAN_CACHE: $text"
  python3 -m pip --version >/dev/null 2>&1 ||
    fail 69 "python3 has no pip, which fetches LibTorch" "Run scripts/setup.sh."
  mkdir -p "$partial"
  # shellcheck disable=SC2086  # a list of words
  set -- $packages
  for package; do
    number=$((number + 1))
    add_package "$package" "$number of $#"
  done
  if [ "$(torch_version "$partial")" != "$version_needed" ] || ! has_libraries "$partial"; then
    fail 69 "what was fetched into $partial is not LibTorch $version_needed" "Remove that folder and run this again."
  fi
  rm -rf "$cache_stem-$kind"
  mv -T "$partial" "$cache_stem-$kind"
}

kind=cpu
case ${1:-} in
  '' | --cpu) ;;
  --cuda) kind=cuda ;;
  *) fail 64 "unknown argument $1 (--cpu or --cuda)" ;;
esac
[ -z "${TITAN_LIBTORCH:-}" ] || use_named_folder
use_installed_python
# The wheel holds Python's part too, which the tests use; so each Python version has its own.
cache_stem=$TITAN_CACHE/libtorch-$version_needed-$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
use_cache
mkdir -p "$TITAN_CACHE" || fail 69 "the cache folder $TITAN_CACHE cannot be made" "Name another with TITAN_CACHE."
exec 9>"$TITAN_CACHE/libtorch.lock"
flock -n 9 || { say "Waiting for another checkout that is fetching LibTorch"; flock 9; }
use_cache
fetch
use_cache
