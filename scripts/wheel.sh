#!/usr/bin/env bash
# Makes build/wheel/titan_train-VERSION-py3-none-PLATFORM.whl: what scripts/bundle.sh makes, for `pip install` beside torch
# 2.11.0, which it names as its only dependency. The last line is the wheel's path.
#   scripts/wheel.sh [--allow-newer]     as scripts/bundle.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

bundle=$("$TITAN_ROOT/scripts/bundle.sh" "$@" | tail -n 1)
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$TITAN_BUILD/CMakeCache.txt")
# newest PREFIX: the newest symbol version of the bundle's files.
newest() {
  objdump -T "$bundle"/lib/* 2>/dev/null | grep -F '*UND*' | sed -n "s/.*[( ]$1_\([0-9.]*\)).*/\1/p" | sort -Vu | tail -n 1
}

# The platform tag names the oldest glibc of a system (PEP 600) that also has the libstdc++: GLIBCXX_3.4.29 came with
# systems of glibc 2.34, 3.4.30 of 2.35, 3.4.32 of 2.38, 3.4.33 of 2.39. auditwheel show says the same.
glibc=$(newest GLIBC)
case $(newest GLIBCXX) in
  3.4.29) with_libstdcxx=2.34 ;;
  3.4.30) with_libstdcxx=2.35 ;;
  3.4.31 | 3.4.32) with_libstdcxx=2.38 ;;
  3.4.33) with_libstdcxx=2.39 ;;
  *) with_libstdcxx=$glibc ;;
esac
oldest=$(printf '%s\n' "$glibc" "$with_libstdcxx" | sort -V | tail -n 1)
python3 "$TITAN_ROOT/scripts/wheel.py" "$bundle" "$version" "manylinux_${oldest/./_}_x86_64" "$TITAN_ROOT/build/wheel"
