#!/usr/bin/env bash
# Prints the folder that holds Arrow C++ (pyarrow/include, pyarrow/libarrow.so.*, pyarrow/libparquet.so.*), fetching it
# when needed: 55 MB from Python's package index, 70 MB on disk. Only reading Parquet files needs it.
#   TITAN_ARROW   a folder that holds it: the site-packages folder of a Python pyarrow of the same version
# The cache is TITAN_CACHE, by default the folder titan in XDG_CACHE_HOME or ~/.cache; all checkouts share it.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly version_needed=26.0.1
# Arrow 26.0.1 is ABI version 2600.
readonly libraries='pyarrow/libarrow.so.2600 pyarrow/libparquet.so.2600'
readonly header=pyarrow/include/parquet/arrow/reader.h
# Its list of files and its licences, as in every site-packages folder: scripts/licences.py reads them.
readonly record=pyarrow-$version_needed.dist-info
folder=$TITAN_CACHE/arrow-$version_needed-$(uname -m)
readonly folder

# is_complete FOLDER
is_complete() {
  local file
  for file in $libraries $header "$record/RECORD"; do
    [ -e "$1/$file" ] || return 1
  done
  grep -qs "ARROW_VERSION_STRING \"$version_needed\"" "$1/pyarrow/include/arrow/util/config.h"
}

use_folder() {
  ! is_complete "$1" || { printf '%s\n' "$1"; exit 0; }
}

# keep_needed FOLDER: a wheel also holds Python's part and what reads other formats, 150 MB.
keep_needed() {
  local kept=$1.kept file
  rm -rf "$kept"
  mkdir -p "$kept/pyarrow"
  for file in $libraries pyarrow/include "$record"; do
    mv "$1/$file" "$kept/$file" || return 1
  done
  rm -rf "$1"
  mv -T "$kept" "$1"
}

fetch() {
  local partial=$folder.partial
  say "Fetching Arrow C++ $version_needed from Python's package index into $TITAN_CACHE: 55 MB to fetch once, 70 MB on disk"
  python3 -m pip --version >/dev/null 2>&1 || fail 69 "python3 has no pip, which fetches Arrow" "Run scripts/setup.sh."
  rm -rf "$partial"
  mkdir -p "$partial"
  unpack_wheel "pyarrow==$version_needed" "$partial" ||
    fail 69 "pyarrow==$version_needed could not be fetched with pip (its message is above)" \
      "Without a network, one of these helps:" \
      "- TITAN_ARROW=FOLDER, the site-packages folder of any Python pyarrow $version_needed" \
      "- a copy of $folder from another machine, at the same place" \
      "- pip's own settings: a proxy (https_proxy), a mirror (PIP_INDEX_URL), a folder of wheels (PIP_FIND_LINKS)"
  if ! is_complete "$partial" || ! keep_needed "$partial"; then
    fail 69 "what was fetched into $partial is not Arrow C++ $version_needed" "Remove that folder and run this again."
  fi
  rm -rf "$folder"
  mv -T "$partial" "$folder"
}

[ $# -eq 0 ] || fail 64 "unknown argument $1 (there is none)"
if [ -n "${TITAN_ARROW:-}" ]; then
  use_folder "$TITAN_ARROW"
  fail 64 "TITAN_ARROW=$TITAN_ARROW holds no complete pyarrow $version_needed" \
    "Name the site-packages folder of a Python pyarrow $version_needed, or unset TITAN_ARROW to have it fetched."
fi
use_folder "$folder"
mkdir -p "$TITAN_CACHE" || fail 69 "the cache folder $TITAN_CACHE cannot be made" "Name another with TITAN_CACHE."
exec 9>"$TITAN_CACHE/arrow.lock"
flock -n 9 || { say "Waiting for another checkout that is fetching Arrow"; flock 9; }
use_folder "$folder"
fetch
use_folder "$folder"
