#!/usr/bin/env bash
# What scripts/setup.sh installs and says, with stand-ins for the package tools: nothing is installed here.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# Package tools that know every package but those named, an apt-get that writes down its arguments, and a plain user.
make_system() {
  printf '%s\n' "$@" >absent
  # shellcheck disable=SC2016  # expanded when the program runs
  program dpkg-query <<<'shift 3; for p in "$@"; do grep -qxF "$p" '"'$PWD/absent'"' || printf "ii  %s\n" "$p"; done'
  # shellcheck disable=SC2016
  program apt-get <<<'echo "apt-get $*" >>'"'$PWD/calls'"
  # shellcheck disable=SC2016
  program id <<<'echo "${FAKE_USER:-1000}"'
  program python3 </dev/null  # lacks no module
  program cmake <<<'echo "cmake version 3.25.1"'
  local command
  for command in g++ ninja ccache mold git; do
    program "$command" </dev/null
  done
  for command in bash env grep sed sort head xargs dirname; do
    ln -s "$(command -v "$command")" "bin/$command"
  done
  export PATH=$PWD/bin
  unset TITAN_SKIP_SETUP
}

nothing_missing() {
  make_system
  expect 0 "$checkout/scripts/setup.sh"
  expect_equal "" "$printed"
  expect 0 "$checkout/scripts/setup.sh" --check
  [ ! -e calls ]
}

check_only() {
  make_system libfmt-dev libzstd-dev
  expect 1 "$checkout/scripts/setup.sh" --check
  expect_equal "missing packages: libfmt-dev libzstd-dev" "$printed"
  [ ! -e calls ]
}

no_root() {
  make_system libfmt-dev
  expect 69 "$checkout/scripts/setup.sh"
  expect_text "sudo apt-get update && sudo apt-get install --no-install-recommends libfmt-dev"
  [ ! -e calls ]
}

as_root() {
  make_system libfmt-dev libzstd-dev
  FAKE_USER=0 expect 0 "$checkout/scripts/setup.sh"
  expect_text "Installing with apt: libfmt-dev libzstd-dev"
  expect_equal "libfmt-dev libzstd-dev" "$(sed -n 's/.*--no-install-recommends //p' calls)"
}

no_network() {
  make_system libfmt-dev libzstd-dev
  # shellcheck disable=SC2016  # expanded when the program runs
  echo 'case "$*" in *install*) echo "E: Failed to fetch http://deb.debian.org/x.deb" >&2; exit 100 ;; esac' >bin/apt-get
  FAKE_USER=0 expect 69 "$checkout/scripts/setup.sh"
  expect_text "E: Failed to fetch http://deb.debian.org/x.deb"
  expect_text "apt could not install: libfmt-dev libzstd-dev"
  expect_text "apt-get download libfmt-dev libzstd-dev"
  expect_text "TITAN_SKIP_SETUP=1"
}

missing_tool() {
  make_system
  /bin/rm bin/ninja
  expect 1 "$checkout/scripts/setup.sh" --check
  expect_equal "missing packages: ninja-build" "$printed"
}

old_cmake() {
  make_system
  echo 'echo "cmake version 3.22.1"' >bin/cmake
  expect 69 "$checkout/scripts/setup.sh"
  expect_text "cmake 3.22.1"
}

check "setup.sh is silent and needs no root when nothing is missing" nothing_missing
check "setup.sh --check names what is missing and installs nothing" check_only
check "setup.sh names the packages and the command when it may not install them" no_root
check "setup.sh installs exactly what is missing" as_root
check "setup.sh names what apt could not fetch and how to give it by hand" no_network
check "setup.sh takes a tool from wherever it comes and names its package when it is absent" missing_tool
check "setup.sh refuses a cmake that is too old" old_cmake
finish
