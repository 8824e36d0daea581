#!/bin/sh
# Starts the program of its own name in lib/, titan_train, with the LibTorch of a Python torch 2.11.0: that of
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
exec "$here/lib/$(basename -- "$self")" "$@"
