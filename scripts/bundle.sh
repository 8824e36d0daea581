#!/usr/bin/env bash
# Makes build/bundle/titan-VERSION: a folder that runs on another Linux machine (Debian 12, Ubuntu 24.04 or newer) given
# only a Python torch 2.11.0, and checks that it will.
#   scripts/bundle.sh                    checks, and fails when the program needs a newer system than Debian 12
#   scripts/bundle.sh --allow-newer      the same, but on a newer build machine only says what the bundle will need
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly newest_glibc=2.36 newest_glibcxx=3.4.30 most_megabytes=60

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
  fail 69 "the bundle needs ${prefix}_$found, newer than Debian 12 has" \
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
  env -i PATH=/usr/bin:/bin HOME="$folder/empty" TITAN_LIBTORCH="$site" ../moved/titan_train \
    ../moved/configs/debug_model.toml --training.steps=2 --job.dump_folder=outputs >&2 ||
    fail 70 "the bundle does not train in an empty folder; its message is above"
  cd "$TITAN_ROOT"
}

allow_newer=no
case ${1:-} in
  '') ;;
  --allow-newer) allow_newer=yes ;;
  *) fail 64 "unknown argument $1 (there is only --allow-newer)" ;;
esac
"$TITAN_ROOT/scripts/setup.sh"
build_targets titan_program
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$TITAN_BUILD/CMakeCache.txt")
site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$TITAN_BUILD/CMakeCache.txt")
bundle=$TITAN_ROOT/build/bundle/titan-$version
rm -rf "$bundle"
cmake --install "$TITAN_BUILD" --prefix "$bundle" --strip >/dev/null ||
  fail 70 "cmake --install failed; its message is above"
say "Checking $bundle"
check_size "$bundle"
check_run_path "$bundle"
check_symbol_version GLIBC "$newest_glibc" "$bundle"/lib/*
check_symbol_version GLIBCXX "$newest_glibcxx" "$bundle"/lib/*
check_run "$bundle"
printf '%s\n' "$bundle"
