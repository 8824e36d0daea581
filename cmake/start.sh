#!/bin/sh
# Starts the program of its own name in lib/, titan_train, with the LibTorch beside it or that of a Python torch 2.11.0: of
# TITAN_LIBTORCH (a site-packages folder, a torch folder or a virtual environment), else that of python3. Arguments go to
# the program.
version=2.11.0
self=$(readlink -f -- "$0")
here=$(dirname -- "$self")

refuse() {
  printf 'error: %s\n' "$1" >&2
  cat >&2 <<END
  titan_train needs the libraries of Python's torch $version. One way to get them, without touching the system's Python:
    python3 -m venv ~/titan-torch && ~/titan-torch/bin/pip install torch==$version
    export TITAN_LIBTORCH=~/titan-torch
END
  exit 64
}

# The oldest libstdc++ that has what the program asks for is that of g++ 12. A user's own library path may name another.
if [ -z "${LD_LIBRARY_PATH:-}" ]; then
  runtime=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/.*libstdc++\.so\.6 .*x86-64.*=> //p' | head -n 1)
  if [ -n "$runtime" ] && ! grep -q GLIBCXX_3.4.30 "$runtime"; then
    printf 'error: %s is older than that of g++ 12, which titan_train needs\n' "$runtime" >&2
    printf '  Use Debian 12, Ubuntu 22.04 or newer, or name a newer one with LD_LIBRARY_PATH.\n' >&2
    exit 69
  fi
fi

program=$here/lib/$(basename -- "$self")
if [ -e "$here/lib/libtorch_cpu.so" ]; then  # a bundle with LibTorch inside; its libraries find each other
  exec "$program" "$@"
fi

wanted=${TITAN_LIBTORCH:-}
[ -n "$wanted" ] || wanted=$(python3 -c 'import importlib.util, os, sys
sys.path = [folder for folder in sys.path if folder]  # not the current folder
spec = importlib.util.find_spec("torch")
print(os.path.dirname(spec.origin) if spec and spec.origin else "")' 2>/dev/null)
[ -n "$wanted" ] || refuse "TITAN_LIBTORCH is not set, and python3 has no torch"

torch=
for candidate in "$wanted/torch" "$wanted" "$wanted"/lib/python3*/site-packages/torch; do
  [ -z "$torch" ] && [ -e "$candidate/lib/libtorch_cpu.so" ] && torch=$(cd -- "$candidate" && pwd -P)
done
[ -n "$torch" ] || refuse "there is no torch in $wanted"
grep -q "^__version__ *= *['\"]${version}['+\"]" "$torch/version.py" 2>/dev/null ||
  refuse "$torch is not torch $version"

path=$here/lib:$torch/lib
for folder in "${torch%/*}"/nvidia/*/lib; do
  [ ! -d "$folder" ] || path=$path:$folder
done
LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$program" "$@"
