"""The card of this machine: what it is, and what stands in the way of measuring it."""

import contextlib
import dataclasses
import fcntl
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from programs import LEAST_DISK, bind, execute, results_of

# Those of servers' own boards, whose slower relatives share a part of the name, and their tables in src/estimate/hardware.toml.
KNOWN = {r"^NVIDIA H200(?! NVL)": "h200", r"^NVIDIA H100 80GB HBM3": "h100-sxm", r"^NVIDIA B200": "b200", r"^NVIDIA A100-SXM4?-80GB": "a100-80"}
NAMES, STAND_IN = "H200, H100 SXM, B200, A100 SXM 80 GB", "h100-sxm"  # whose rates an unknown card gets
GENERATIONS = (8, 9)  # of cards that the programs have code for (cmake/Cuda.cmake)
TORCH = "2.11.0"
CUDA, DRIVER = 13000, 580  # what the programs are built for, and the first driver that runs it
IDLE_MIB, ASSUMED_MIB = 600, 24 << 10  # used on an idle card; assumed if the card's memory is unknown
LOCKS = ["/dev/nvidiactl"]  # which all on this machine see, before a folder for temporary files
# Asks the driver itself, in a process of its own: a broken one may hang. Where nobody else says what memory is used, it has
# to make a context, which takes 500 MiB or so.
ASK_DRIVER = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
name, total, version = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
free, context, generation = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_int()
code = cuda.cuInit(0)
cuda.cuDriverGetVersion(ctypes.byref(version))
code = code or cuda.cuDeviceGetName(name, 256, 0) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
told = {} if code else {"name": name.value.decode(), "mib": total.value / 2**20}
print(json.dumps({"cuda": version.value} | told), flush=True)
if not cuda.cuDeviceGetAttribute(ctypes.byref(generation), 75, 0):
    print(json.dumps({"generation": generation.value}), flush=True)
made = "memory" in sys.argv and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not cuda.cuCtxSetCurrent(context)
if made and not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
    print(json.dumps({"used_mib": max((total.value - free.value) / 2**20 - 500, 0)}))
"""


@dataclasses.dataclass
class Card:
    name: str = "an unknown card"
    driver: str = ""
    mib: float = 0.0  # 0: not known
    used_mib: float = 0.0
    cuda: int = 0  # that the driver runs; 0: not known
    generation: int = 0  # first number of its compute capability; 0: not known

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.name, self.driver, f"{self.mib:.0f} MiB"]))

    @property
    def free_mib(self) -> float:
        return (self.mib or ASSUMED_MIB) - (self.used_mib if self.used_mib > IDLE_MIB else 0)

    @property
    def kind(self) -> str:
        """Whose rates are expected of it, by the name that `titan_train plan --gpu` knows."""
        return next((table for name, table in KNOWN.items() if re.search(name, self.name)), STAND_IN)

    def obstacles(self) -> Iterator[str]:
        """What is to be known before its numbers are read, a sentence each."""
        if not any(re.search(name, self.name) for name in KNOWN):
            yield f"{self.name} is none of {NAMES}: rows are chosen by its memory, and what is expected of them is an H100 SXM's."
        if self.generation and self.generation not in GENERATIONS:
            yield (f"The programs have no code for compute capability {self.generation}.x, unless they were built for it (CUDAARCHS): "
                   "rows on the card will be refused.")  # fmt: skip
        if 0 < self.cuda < CUDA or 0 < int(re.match(r"\d*", self.driver)[0] or 0) < DRIVER:
            driver = f"driver {self.driver}".strip()
            yield f"The {driver} is too old for CUDA {CUDA // 1000} (it takes {DRIVER} or newer): rows on the card will be refused."
        if self.used_mib > IDLE_MIB:
            yield (f"Another process has {self.used_mib:,.0f} MiB of the card: rows are chosen for the {self.free_mib:,.0f} MiB left, and may be "
                   "slower than alone.")  # fmt: skip
        if self.mib == 0:
            yield f"The card's memory is unknown: rows are chosen for {ASSUMED_MIB >> 10} GiB."


def find_card() -> Card | None:
    """From nvidia-smi, or from the driver where that tool is missing."""
    code, printed = execute(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"], 30)
    told = re.match(r"(.+?), *(.+?), *([\d.]*)[^,\n]*(?:, *([\d.]*))?", printed) if code == 0 else None
    _, printed = execute([sys.executable, "-c", ASK_DRIVER, "" if told and told[4] else "memory"], 60)
    card = Card()
    with contextlib.suppress(ValueError):  # it said nothing
        for line in results_of(printed):
            card = dataclasses.replace(card, **line)
    if told:
        return dataclasses.replace(card, name=told[1], driver=told[2], mib=card.mib or float(told[3] or 0), used_mib=float(told[4] or card.used_mib))
    # Where only a part of a driver is there, the rows will say more than this script can.
    return card if card != Card() or pathlib.Path("/dev/nvidiactl").exists() else None


def torch_folder() -> pathlib.Path:
    """Python's torch, or a folder that is not there."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin if spec and spec.origin else "/no/torch").parent


def obstacles(out: pathlib.Path | None) -> Iterator[str]:
    """The same of the machine: where Python's torch is not the one that the programs need, and where little can be written to
    the folder `out`, which is made."""
    file = torch_folder() / "version.py"
    version = re.search(r"^__version__ *= *['\"]([^'\"]*)", file.read_text() if file.exists() else "", re.MULTILINE)
    if not os.environ.get("TITAN_LIBTORCH") and not (version and version[1].split("+")[0] == TORCH):
        found = f"torch {version[1]}" if version else "no torch"
        yield f"Python has {found} where {TORCH} is needed: titan_train will not start, and only rows that do without it run."
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
            if (free := shutil.disk_usage(out).free) < LEAST_DISK:
                yield f"The disk under {out.name} has {free >> 20} MiB left: files may be missing there."
    except OSError as error:
        yield f"The folder {out.name} could not be made: {error.strerror}; what would go there is printed alone."


def only_one() -> contextlib.AbstractContextManager | None:
    """A lock that is held until it is closed, or none when another process holds it. Where none can be made, all go on."""
    try:
        tempfile.gettempdir()
    except OSError:  # the disk is full; this is memory
        tempfile.tempdir = "/dev/shm"
    for path in [*LOCKS, f"{tempfile.gettempdir()}/titan-gpu.lock"]:
        with contextlib.suppress(OSError):
            lock = os.fdopen(os.open(path, os.O_RDONLY | (0 if path in LOCKS else os.O_CREAT), 0o666))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                return None
    return contextlib.nullcontext()


def end_recorder(recorder: subprocess.Popen) -> None:
    """By a signal that lets it write what it holds, if it listens to one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        recorder.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            recorder.wait(1)


def start_recorder(out: pathlib.Path) -> subprocess.Popen | None:
    """Clocks, power, temperature and memory of every second, into dmon.txt."""
    command = ["nvidia-smi", "dmon", "-s", "pucm", "-d", "1", "-o", "T"]
    try:
        with open(out / "dmon.txt", "wb") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=bind)
    except OSError:  # there is no such tool, or no room
        return None
