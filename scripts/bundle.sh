#!/usr/bin/env bash
# Makes build/bundle/titan-VERSION: a folder that runs on another Linux machine (Debian 12, Ubuntu 22.04 or newer) given
# only a Python torch 2.11.0, and checks that it will. Its last line is the path. It reads Parquet if the build does
# (scripts/setup.sh --parquet).
#   scripts/bundle.sh                    checks, and fails when the program needs a newer system than Ubuntu 22.04
#   scripts/bundle.sh --allow-newer      the same, but on a newer build machine only says what the bundle will need
#   scripts/bundle.sh --self-contained   with LibTorch inside, as one .tar.zst: needs no Python; computes on CPUs
#   scripts/bundle.sh --self-contained --cuda   with NVIDIA's libraries, too
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# Those of Ubuntu 22.04; Debian 12 has glibc 2.36 and the same libstdc++.
readonly newest_glibc=2.35 newest_glibcxx=3.4.30 most_megabytes=60

# newest_symbol_version PREFIX FILE...: the highest PREFIX_x.y that the files ask for.
newest_symbol_version() {
  local prefix=$1
  shift
  objdump -T "$@" 2>/dev/null | grep -F '*UND*' | sed -n "s/.*[( ]${prefix}_\([0-9.]*\)).*/\1/p" | sort -Vu | tail -n 1
}

# check_symbol_version PREFIX NEWEST FILE...
check_symbol_version() {
  local prefix=$1 newest=$2 found
  shift 2
  found=$(newest_symbol_version "$prefix" "$@")
  say "  newest ${prefix} symbol: ${found:-none} (at most $newest)"
  [ "$(printf '%s\n' "$newest" "$found" | sort -V | tail -n 1)" = "$newest" ] && return 0
  [ "$allow_newer" = no ] || { say "  it will need a system with ${prefix}_$found"; return 0; }
  fail 69 "the bundle needs ${prefix}_$found, newer than Ubuntu 22.04 has" \
    "Build on Debian 12, or pass --allow-newer for a bundle that runs only on systems like this one."
}

check_size() {
  local megabytes
  megabytes=$(du -sm "$1" | cut -f 1)
  say "  size: $megabytes MB (at most $most_megabytes)"
  [ "$megabytes" -le "$most_megabytes" ] || fail 70 "the bundle is $megabytes MB, more than $most_megabytes"
}

check_run_path() {
  local file run_path
  for file in "$1"/lib/titan_train "$1"/lib/libtitan*.so; do
    run_path=$(readelf -d "$file" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
    say "  run path of ${file##*/}: $run_path"
    # shellcheck disable=SC2016  # the text $ORIGIN itself
    [ "$run_path" = '$ORIGIN' ] || fail 70 "${file##*/} has run path '$run_path' instead of \$ORIGIN"
  done
}

# Runs a copy in an empty folder, with no environment but the one variable a user sets.
check_run() {
  local folder
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$folder'" EXIT
  cp -r "$1" "$folder/moved"
  mkdir "$folder/empty"
  cd "$folder/empty"
  local torch=$site said
  [ "$self_contained" = no ] || torch=nowhere
  local program=(env -i PATH=/usr/bin:/bin HOME="$folder/empty" TITAN_LIBTORCH="$torch" ../moved/titan_train)
  "${program[@]}" ../moved/configs/debug_model.toml --training.steps=2 --job.dump_folder=outputs >&2 ||
    fail 70 "the bundle does not train in an empty folder; its message is above"
  if [ "$parquet" = ON ]; then
    # Only the marks at both ends of a Parquet file: that its footer is missing is found by Arrow.
    printf 'PAR1\0\0\0\0PAR1' >empty.parquet
    said=$("${program[@]}" data peek --dataset-path empty.parquet 2>&1 || true)
    [[ $said = *'its footer is damaged'* ]] || fail 70 "the bundle does not read Parquet: $said"
  fi
  cd "$TITAN_ROOT"
}

# cached VARIABLE: its value in the build's CMakeCache.txt.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$TITAN_BUILD/CMakeCache.txt"
}

# install_bundle [ARGUMENT...]: of cmake --install.
install_bundle() {
  cmake --install "$TITAN_BUILD" --prefix "$bundle" --strip "$@" >/dev/null ||
    fail 70 "cmake --install failed; its message is above"
}

# needed_libraries FILE...: the names of the shared libraries that the files name.
needed_libraries() {
  readelf -d "$@" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u
}

# add_libtorch FOLDER: copies the libraries of torch and NVIDIA that those in the folder need, and what these need.
add_libtorch() {
  local folder=$1 name found copied=yes
  if [ "$cuda" = yes ]; then
    # cuDNN and NVRTC open libraries by names that no file lists.
    find "$site"/nvidia/*/lib -name '*.so*' ! -name '*_static*' -exec cp -Ln {} "$folder/" \;
    cp "$site"/torch/lib/lib{torch,c10}_cuda.so "$site/torch/lib/libtorch_nvshmem.so" "$folder/"
  fi
  while [ "$copied" = yes ]; do
    copied=no
    for name in $(needed_libraries "$folder"/*); do
      [ ! -e "$folder/$name" ] || continue
      found=$(find "$site/torch/lib" "$site/nvidia" -name "$name" 2>/dev/null | head -n 1)
      [ -z "$found" ] || { cp -L "$found" "$folder/$name"; copied=yes; }
    done
  done
}

allow_newer=no self_contained=no cuda=no
for argument in "$@"; do
  case $argument in
    --allow-newer) allow_newer=yes ;;
    --self-contained) self_contained=yes ;;
    --cuda) cuda=yes ;;
    *) fail 64 "unknown argument $argument (there are --allow-newer, --self-contained and --cuda)" ;;
  esac
done
[ "$cuda" = no ] || [ "$self_contained" = yes ] || fail 64 "--cuda is for --self-contained: other bundles find the torch of a Python"
"$TITAN_ROOT/scripts/setup.sh"
build_targets titan_program
parquet=$(cached TITAN_PARQUET)
version=$(cached CMAKE_PROJECT_VERSION)
site=$(cached TITAN_LIBTORCH_FOUND)
bundle=$TITAN_ROOT/build/bundle/titan-$version
rm -rf "$bundle"
install_bundle
say "Checking $bundle"
check_size "$bundle"
sites=("$site")
if [ "$parquet" = ON ]; then # after the check of the size, to which Arrow adds 62 MB
  install_bundle --component parquet
  sites+=("$(cached TITAN_ARROW_FOUND)")
fi
if [ "$self_contained" = yes ]; then
  [ "$cuda" = yes ] || rm -f "$bundle/lib/libtitan_cuda.so"  # what it needs is several GB
  add_libtorch "$bundle/lib"
fi
python3 "$TITAN_ROOT/scripts/licences.py" "$bundle/lib" "$bundle/licences" "${sites[@]}" ||
  fail 69 "a library would travel without its licence; the message is above"
check_run_path "$bundle"
check_symbol_version GLIBC "$newest_glibc" "$bundle"/lib/*
check_symbol_version GLIBCXX "$newest_glibcxx" "$bundle"/lib/*
check_run "$bundle"
[ "$self_contained" = yes ] || { printf '%s\n' "$bundle"; exit 0; }
archive=$bundle-linux-x86_64-$([ "$cuda" = yes ] && echo cuda || echo cpu).tar.zst
tar -C "${bundle%/*}" -I 'zstd -T0 -10' -cf "$archive" "${bundle##*/}"
printf '%s\n' "$archive"
