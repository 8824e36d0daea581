#!/usr/bin/env bash
# Installs the packages that building and testing need (Debian 12, Ubuntu 24.04 and newer) and says which.
#   scripts/setup.sh           installs what is missing; needs no root when nothing is
#   scripts/setup.sh --check   only reports; exit 1 when something is missing
#   scripts/setup.sh --parquet also fetches Arrow C++ (55 MB) and builds titan_train with libtitan_parquet.so, which reads
#                              Parquet files; later builds in this checkout keep it
# TITAN_SKIP_SETUP=1 leaves the packages to you.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# A command that is there counts, wherever it comes from: "command package".
readonly tools='g++ g++
cmake cmake
ninja ninja-build
ccache ccache
mold mold
git git
python3 python3'
readonly libraries='libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libpcre2-dev
  zlib1g-dev libdeflate-dev libutf8proc-dev libzstd-dev libxxhash-dev libgtest-dev'
readonly oldest_cmake=3.25

missing=()

find_missing_tools() {
  local command package
  while read -r command package; do
    command -v "$command" >/dev/null || missing+=("$package")
  done <<<"$tools"
  # Python's package installer fetches LibTorch, and venv holds the tests' Python; Debian splits both from python3.
  local absent
  absent=$(python3 -c 'from importlib.util import find_spec
print(*(name for name in ("pip", "venv", "ensurepip") if not find_spec(name)))' 2>/dev/null || echo pip venv)
  case " $absent " in *' pip '*) missing+=(python3-pip) ;; esac
  case " $absent " in *' venv '* | *' ensurepip '*) missing+=(python3-venv) ;; esac
  [ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
}

find_missing_libraries() {
  command -v dpkg-query >/dev/null || fail 69 "this is neither Debian nor Ubuntu: install these libraries yourself" \
    "$(xargs <<<"$libraries")" "then run again with TITAN_SKIP_SETUP=1"
  local package installed
  # shellcheck disable=SC2086  # a list of words
  installed=$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' $libraries 2>/dev/null | sed -n 's/^ii *//p' || true)
  for package in $libraries; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
  done
}

check_cmake() {
  command -v cmake >/dev/null || return 0
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n' "$oldest_cmake" "$version" | sort -V | head -n 1)" = "$oldest_cmake" ] ||
    fail 69 "cmake $version ($(command -v cmake)) is too old, $oldest_cmake is needed"
}

install_missing() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [ ! -t 0 ]; }; then
      fail 69 "these packages are missing, and installing them needs root:" "${missing[*]}" \
        "Run: sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"
    fi
    as_root=(sudo)
  fi
  say "Installing with apt: ${missing[*]}"
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  "${as_root[@]}" apt-get -qq update >/dev/null || say "apt-get update failed; going on with the old lists"
  "${as_root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
    fail 69 "apt could not install: ${missing[*]}" "Its message is above. Without a network, one of these helps:" \
      "- apt's own settings: a proxy (Acquire::http::Proxy), a mirror or a disk (/etc/apt/sources.list)" \
      "- their files from a machine of the same kind: apt-get download ${missing[*]}" \
      "  and here: apt-get install ./*.deb" \
      "- TITAN_SKIP_SETUP=1, when you have given them in another way"
}

mode=${1:-}
case $mode in
  '' | --check | --parquet) ;;
  *) fail 64 "unknown argument $mode (there are --check and --parquet)" ;;
esac
if [ "$mode" = --parquet ]; then
  "${BASH_SOURCE[0]}" # in a process of its own, which ends early where nothing is to be installed
  TITAN_PARQUET=ON build_targets "$(program_target)"
  exit 0
fi
[ -z "${TITAN_SKIP_SETUP:-}" ] || exit 0
find_missing_tools
find_missing_libraries
if [ "$mode" = --check ]; then
  check_cmake
  [ ${#missing[@]} -eq 0 ] || { say "missing packages: ${missing[*]}"; exit 1; }
  say "nothing is missing"
  exit 0
fi
[ ${#missing[@]} -eq 0 ] || install_missing
check_cmake
