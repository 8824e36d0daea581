"""The card of this machine: what it is, and what stands in the way of measuring it."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from programs import ROOT, bind, execute, result_of

KNOWN = {"H200": "h200", "H100": "h100-sxm", "B200": "b200", "A100": "a100-80"}  # tables of src/estimate/hardware.toml
STAND_IN = "H100"  # whose rates an unknown card gets
TORCH = "2.11.0"
CUDA, DRIVER = 13000, 580  # what the programs are built for, and the first driver that runs it
IDLE_MIB, ASSUMED_MIB = 600, 24 << 10  # used on an idle card; assumed if the card's memory is unknown
LEAST_DISK = 256 << 20
# Where containers have it when PATH does not say so.
TOOL_FOLDERS = ["/usr/local/nvidia/bin", "/usr/bin", "/usr/local/bin", "/opt/nvidia/bin", "/usr/local/cuda/bin"]
# Asks the driver itself, in a process of its own: a broken one may hang.
ASK_DRIVER = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
name, total, version = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
code = cuda.cuInit(0)
cuda.cuDriverGetVersion(ctypes.byref(version))
code = code or cuda.cuDeviceGetName(name, 256, 0) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(json.dumps({"cuda": version.value} | ({} if code else {"name": name.value.decode(), "mib": total.value / 2**20})))
"""
UNKNOWN = "an unknown card"


@dataclasses.dataclass
class Card:
    name: str = UNKNOWN
    driver: str = ""
    mib: float = 0.0  # 0: not known
    used_mib: float = 0.0
    cuda: int = 0  # that the driver runs; 0: not known

    @property
    def words(self) -> str:
        return ", ".join([self.name, *([self.driver] if self.driver else []), f"{self.mib:.0f} MiB"])

    @property
    def free_mib(self) -> float:
        return (self.mib or ASSUMED_MIB) - (self.used_mib if self.used_mib > IDLE_MIB else 0)

    def table(self) -> str:
        """Its table for `titan_train plan --gpu`: the rates of its kind, and the memory that is free here."""
        name = next((table for kind, table in KNOWN.items() if kind in self.name), KNOWN[STAND_IN])
        text = (ROOT / "src" / "estimate" / "hardware.toml").read_text() + "\n"
        rates = re.search(rf"^\[{name}\].*\n((?:(?!\[).*\n)*)", text, re.MULTILINE)[1]
        here = f"memory_gib = {self.free_mib / 1024:.3f}"
        return f"[{name}-here]\n" + re.sub(r"^memory_gib *=.*$", here, rates, flags=re.MULTILINE)

    def sentences(self) -> list[str]:
        """What is to be known before its numbers are read."""
        old = 0 < self.cuda < CUDA or 0 < int(re.match(r"\d*", self.driver)[0] or 0) < DRIVER
        said = {
            f"{self.name} is none of {', '.join(KNOWN)}: rows are chosen by its memory, and what is expected of them is an {STAND_IN}'s.":
                not any(kind in self.name for kind in KNOWN),
            f"The driver {self.driver} is too old for CUDA {CUDA // 1000} (it takes {DRIVER} or newer): rows on the card will be refused.": old,
            f"Another process has {self.used_mib:,.0f} MiB of the card: rows are chosen for the {self.free_mib:,.0f} MiB left, and may be "
            "slower than alone.": self.used_mib > IDLE_MIB,
            f"The card's memory is unknown: rows are chosen for {ASSUMED_MIB >> 10} GiB.": self.mib == 0,
        }  # fmt: skip
        return [sentence for sentence, holds in said.items() if holds]


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *TOOL_FOLDERS]))


def find_card() -> Card | None:
    """From nvidia-smi, or from the driver where that tool is missing."""
    code, printed = execute([sys.executable, "-c", ASK_DRIVER], 60)
    card = Card(**result_of(printed)) if code == 0 else Card()
    query = ["--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
    code, printed = execute([find_tool("nvidia-smi") or "nvidia-smi", *query], 30)
    if code == 0 and (told := re.match(r"(.+?), *(.+?), *([\d.]*)[^,\n]*(?:, *([\d.]*))?", printed)):
        return Card(told[1], told[2], card.mib or float(told[3] or 0), float(told[4] or 0), card.cuda)
    # Where only a part of a driver is there, the rows will say more than this script can.
    there = card.name != UNKNOWN or card.cuda > 0 or pathlib.Path("/dev/nvidiactl").exists()
    return card if there else None


def torch_folder() -> pathlib.Path:
    """Python's torch, or a folder that is not there."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin if spec and spec.origin else "/no/torch").parent


def library_path(programs: pathlib.Path) -> str:
    """As the start script sets it (cmake/start.sh)."""
    folders = [programs / "lib", torch_folder() / "lib", *torch_folder().parent.glob("nvidia/*/lib")]
    return ":".join([*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")])


def torch_sentence() -> str | None:
    """Where Python's torch is not the one that the programs need."""
    file = torch_folder() / "version.py"
    version = re.search(r"^__version__ *= *['\"]([^'\"]*)", file.read_text() if file.exists() else "", re.MULTILINE)
    if os.environ.get("TITAN_LIBTORCH") or (version and version[1].split("+")[0] == TORCH):
        return None
    found = f"torch {version[1]}" if version else "no torch"
    return f"Python has {found} where {TORCH} is needed: titan_train will not start, and only rows that do without it run."


def disk_sentence(folder: pathlib.Path) -> str | None:
    """Where little can be written to the folder, which is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"The folder {folder.name} could not be made: {error.strerror}; what would go there is printed alone."
    return f"The disk under {folder.name} has {free >> 20} MiB left: files may be missing there." if free < LEAST_DISK else None


def only_one():
    """A lock that is held while the process lives, or none when another one holds it."""
    try:
        tempfile.gettempdir()
    except OSError:  # the disk is full; this is memory
        tempfile.tempdir = "/dev/shm"
    lock = open(pathlib.Path(tempfile.gettempdir()) / "titan-gpu.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return lock


def start_recorder(out: pathlib.Path) -> subprocess.Popen | None:
    """Clocks, power, temperature and memory of every second, into dmon.txt."""
    command = [find_tool("nvidia-smi"), "dmon", "-s", "pucm", "-d", "1", "-o", "T"]
    try:
        with open(out / "dmon.txt", "wb") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=bind)
    except (OSError, TypeError):  # there is no such tool, or no room
        return None
