"""Lets the Python of the tests import torch where NVIDIA's libraries are absent.

    stand_ins.py SITE PACKAGES

torch for Python comes as one CUDA build, whose loader asks for 1.6 GB of libraries that a computation on the CPU never
calls. For each such library that SITE (the folder that holds torch/ and nvidia/) lacks, a small library of the same
name and symbols is made in PACKAGES, a site-packages folder, and loaded when Python starts there. Each of their
functions aborts the process, so a test that did reach for a GPU would be noticed. With all of them there, nothing is
made.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# torch's own libraries that Python loads, and what these need that is no part of torch's package or the C library.
LOADED = ("libtorch_python.so", "libtorch_cuda.so", "libtorch_nvshmem.so")
NVIDIA = re.compile(r"lib(cu|nv|nccl)")
# Symbols without a version, by library; the others name their library as version (cublasCreate_v2@libcublas.so.13).
PREFIXES = {
    "libcufile": ("cuFile",),
    "libcurand": ("curand",),
    "libcusparseLt": ("cusparseLt",),
    "libnccl": ("nccl",),
    "libnvshmem_host": ("nvshmem",),
}


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def missing_libraries(site):
    needed = set()
    for name in LOADED:
        library = site / "torch/lib" / name
        if library.exists():
            needed |= set(re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-dW", library)))
    present = {path.name for path in site.glob("nvidia/*/lib/*")}
    return sorted(name for name in needed if NVIDIA.match(name) and name not in present)


def undefined_symbols(site):
    """Pairs (symbol, version or empty) that torch's libraries leave to others."""
    pairs = set()
    for name in LOADED:
        library = site / "torch/lib" / name
        if library.exists():
            for line in tool("nm", "-D", "--undefined-only", library).splitlines():
                symbol, _, version = line.split()[-1].partition("@")
                pairs.add((symbol, version.lstrip("@")))
    return sorted(pairs)


def make_library(name, symbols, folder):
    stem = name.partition(".so")[0]
    by_version = {}
    for symbol, version in symbols:
        if version == name or symbol.startswith(PREFIXES.get(stem, ())) and not version.startswith("lib"):
            by_version.setdefault(version, []).append(symbol)
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = pathlib.Path(scratch, "source.c"), pathlib.Path(scratch, "versions")
        source.write_text("".join(f"void {s}(void) {{ __builtin_trap(); }}\n" for v in by_version.values() for s in v))
        versions.write_text("".join(f"{v} {{ global: {'; '.join(s)}; }};\n" for v, s in by_version.items() if v))
        options = [f"-Wl,--version-script={versions}"] if versions.stat().st_size else []
        tool("g++", "-x", "c", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", *options,
             "-o", folder / name, source)


def main(site, packages):
    names = missing_libraries(site)
    if not names:
        return
    folder = packages / "titan_stand_ins"
    folder.mkdir()
    symbols = undefined_symbols(site)
    for name in names:
        make_library(name, symbols, folder)
    (folder / "__init__.py").write_text(
        "import ctypes, pathlib\n"
        "for library in sorted(pathlib.Path(__file__).parent.glob('*.so*')):\n"
        "    ctypes.CDLL(str(library))\n")
    (packages / "titan_stand_ins.pth").write_text("import titan_stand_ins\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
