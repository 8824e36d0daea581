#!/usr/bin/env bash
# Counts the instructions of the built CUDA kernels for each byte of memory that they move, in the machine code for sm_90a:
# the table of docs/kernels.md, which says what is counted. Needs a CUDA build, no GPU.
#   scripts/kernel_instructions.sh                   prints the table
#   scripts/kernel_instructions.sh --check [PAGE]    and compares it with docs/kernels.md, or another page
#   scripts/kernel_instructions.sh --code NAME       prints the machine code of the kernels with that in their names
# Exit codes: 0, 1 they differ or a kernel has more instructions than a GPU has time for, 69 something is missing.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly library=$TITAN_BUILD/libtitan_gpu_kernels.a
# Of the first line that the index holds; they read what an older compiler made.
readonly tools_version=13.2.51

# Prints the folder of cuobjdump and nvdisasm: the CUDA toolkit's, else the cache's, filled when needed.
tools() {
  local folder tool
  for folder in "$(dirname "$(command -v cuobjdump || echo .)")" "${CUDA_HOME:-/usr/local/cuda}/bin"; do
    [ ! -x "$folder/cuobjdump" ] || [ ! -x "$folder/nvdisasm" ] || { printf '%s\n' "$folder"; return; }
  done
  folder=$TITAN_CACHE/cuda-disassembler-$tools_version
  if [ ! -e "$folder" ]; then
    rm -rf "$folder.partial"
    for tool in cuobjdump nvdisasm; do
      unpack_wheel "nvidia-cuda-$tool==$tools_version" "$folder.partial" ||
        fail 69 "there is no $tool, in the CUDA toolkit or from Python's package index" \
          "Install the CUDA toolkit's cuobjdump and nvdisasm, or give pip a network or a folder of wheels (PIP_FIND_LINKS)."
      chmod +x "$folder.partial/nvidia/cu13/bin/$tool"
    done
    mv -T "$folder.partial" "$folder"
  fi
  printf '%s\n' "$folder/nvidia/cu13/bin"
}

arguments=() name=
case ${1:-} in
  '') ;;
  --check)
    compiler=$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")$/\1/p' "$TITAN_BUILD"/CMakeFiles/*/CMakeCUDACompiler.cmake | head -n 1)
    arguments=(--check "${2:-$TITAN_ROOT/docs/kernels.md}" --compiler "$compiler")
    ;;
  --code) name=${2:?a part of the name of a kernel} ;;
  *) fail 64 "unknown argument $1 (--check or --code)" ;;
esac
[ -e "$library" ] || fail 69 "there are no CUDA kernels in $TITAN_BUILD" \
  "Build with a CUDA 13 compiler first: scripts/train.sh does."
folder=$(tools)
# cuobjdump looks for nvdisasm on PATH.
listing() { PATH=$folder:$PATH cuobjdump -arch sm_90a -sass "$library" | c++filt; }
if [ -n "$name" ]; then
  listing | awk -v name="$name" '/Function :/ { shown = index($0, name) } shown && !/^ +\/\* 0x/ { sub(/ *\/\* 0x[0-9a-f]* \*\//, ""); print }'
else
  listing | python3 "$TITAN_ROOT/scripts/kernel_instructions.py" "${arguments[@]}"
fi
