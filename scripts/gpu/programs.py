"""What the scripts of this folder share: rows, which are programs with a limit, and where their results go."""

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import BinaryIO, TextIO

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN_LINES, FAILURES, FAILURE_LINES = 30, 3, 12  # the last of a program; of GoogleTest so many failures, with what they say
KEPT_BYTES = 128 << 10  # at each end of what a program prints
FILE_BYTES = 1 << 30  # of a file that a row writes, for the disk is there for all of them
LEAST_SECONDS, LEAST_DISK = 10, 256 << 20  # no row is started with less; a disk with less is called full
DEATH_SECONDS = 5  # for what is killed
LOG_SECONDS = 2  # so often what a program has printed goes to the log, for this script may be killed, too
REFUSAL, REFUSED = "Duplicate GPU detected", "refused by NCCL"  # its words for several ranks on one card
FROM_OUTSIDE = "ended from outside"
NOT_FINITE, NOT_FINITE_CODE = "failed: not finite", 72  # a loss or norm, by titan_train and baseline.py
LIBC, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 1, 36


def show(text: str, stream: TextIO | None = None) -> None:
    """A reader that has gone ends nothing."""
    try:
        print(text, file=stream or sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stderr).fileno())


def adopt_orphans() -> None:
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bind() -> None:
    """In the new process: it dies with this script, and fills no disk."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(ValueError):  # a lower limit holds
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def roomy() -> str | None:
    """Where folders of rows go: none for the usual place, memory where that is full."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(tempfile.gettempdir()).free
        return "/dev/shm" if free < LEAST_DISK and free < shutil.disk_usage("/dev/shm").free else None
    return None


def execute(command: list[str], limit: float, environment: dict[str, str] | None = None,
            tell: Callable[[str], object] = lambda printed: None) -> tuple[int | None, str]:  # fmt: skip
    """Exit code, none when it did not end within `limit` seconds, and what was printed, of which `tell` is told now and then,
    and a KeyboardInterrupt says it, too. `environment`: on top of ours. All that it started ends with it."""
    before = children()
    with open(os.memfd_create("printed"), "w+b") as printed:  # not on a disk, which may be full
        try:
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | (environment or {}), stdin=subprocess.DEVNULL, stdout=printed,
                                       stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=bind)  # fmt: skip
        except OSError as error:  # as a shell says that there is no such program
            return 127, str(error)
        code, stopped, end = None, False, time.monotonic() + max(limit, 0.1)
        try:
            while code is None and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(left, LOG_SECONDS))
                tell(text_of(printed))
        except KeyboardInterrupt:
            stopped = True
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEATH_SECONDS)  # one that a driver holds may not die; the rows after it are run all the same
        end_all(lambda: children() - before - {process.pid})
        if stopped:
            raise KeyboardInterrupt(text_of(printed))
        return code, text_of(printed)


def children() -> set[int]:
    """Of this script; with adopt_orphans() also what rows leave behind."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.add(int(entry))
    return found


def end_all(left: Callable[[], set[int]]) -> None:
    """Ranks have groups of their own, and hold memory of the card until they are gone."""
    end = time.monotonic() + DEATH_SECONDS
    while (found := left()) and time.monotonic() < end:
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, os.WNOHANG)
        time.sleep(0.02)


def text_of(printed: BinaryIO) -> str:
    """Both ends of it."""
    size, begin = os.fstat(printed.fileno()).st_size, os.pread(printed.fileno(), KEPT_BYTES, 0)
    between = b"\n... %d bytes ...\n" % left if (left := size - 2 * KEPT_BYTES) > 0 else b""
    return (begin + between + os.pread(printed.fileno(), KEPT_BYTES, max(size - KEPT_BYTES, KEPT_BYTES))).decode(errors="replace")


@dataclasses.dataclass
class Outcome:  # of a row
    name: str
    command: str = ""
    verdict: str = "left out: no time"
    seconds: float = 0.0
    limit: float = 0.0
    printed: str = ""
    numbers: dict = dataclasses.field(default_factory=dict)
    told: str = ""  # behind the verdict

    @property
    def crashed(self) -> bool:
        return self.verdict.startswith(("exit code", "not over"))

    @property
    def ended(self) -> bool:
        """By itself and without an error, whatever its numbers are."""
        return bool(self.command) and not self.crashed and not self.verdict.startswith(("left out", "cut off", REFUSED, FROM_OUTSIDE))


class Session:
    """Runs rows within a number of seconds; a row that has ended is in the files before the next one starts."""

    def __init__(self, arguments: argparse.Namespace, begin: float, save: Callable[[], None] = lambda: None):
        self.programs, self.device = arguments.programs.resolve(), arguments.device
        self.log, self.results = arguments.log, arguments.results
        self.begin, self.total, self.save = begin, arguments.seconds, save
        self.only = [name for name in re.split(",(?! )", arguments.only) if name and arguments.script != "bench"]
        self.outcomes: dict[str, Outcome] = {}
        self.logged = 0  # characters of the running row in the log
        self.sentences: list[str] = []  # about the machine, for the page
        self.hidden: list[pathlib.Path] = [self.programs, ROOT]

    def seconds_left(self) -> float:
        return self.total - (time.monotonic() - self.begin)

    def say(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)
            show(sentence)

    def without_paths(self, text: str) -> str:
        """As it reads on every machine."""
        for folder in self.hidden:
            text = text.replace(f"{folder}/", "")
        return text

    def write(self, path: pathlib.Path | None, text: str | bytes, mode: str = "a") -> bool:
        """Whether it could be written. A file that cannot ends no row, and keeps what it had."""
        if not path:
            return True
        new = path if mode == "a" else path.with_name(f"{path.name}.new")
        size = os.path.getsize(new) if os.path.exists(new) else 0
        try:
            with open(new, f"{mode}b") as file:  # whatever the locale can say
                file.write(text if isinstance(text, bytes) else text.encode(errors="replace"))
            os.replace(new, path)
            return True
        except OSError as error:
            self.say(f"{path.name} could not be written: {error.strerror}")
            with contextlib.suppress(OSError):
                os.truncate(new, size) if new == path else new.unlink()
            return False

    def write_log(self, printed: str, whole: bool = True) -> None:
        """What of the running row is not there yet; of one that is not over, lines that are."""
        text = self.without_paths(printed)
        end = len(text) if whole else text.rfind("\n") + 1 if len(printed) < KEPT_BYTES else 0
        if end > self.logged:
            self.write(self.log, text[self.logged : end])
            self.logged = end

    def unwanted(self, name: str) -> bool:
        return bool(self.only) and name not in self.only

    def end(self, run: Outcome) -> Outcome:
        """It becomes a line of the results; the page is written anew."""
        self.outcomes[run.name] = run
        line = {"row": run.name, "verdict": run.verdict, "seconds": round(run.seconds, 2), "limit": round(run.limit, 2)}
        if not self.write(self.results, json.dumps(line | {"command": run.command} | run.numbers) + "\n"):
            short = {key: number for key, number in run.numbers.items() if isinstance(number, (int, float))}
            show(json.dumps(line | short), sys.stdout)  # before the table, of which nothing may be lost
        self.save()
        return run

    def numbers_of(self, name: str) -> dict:
        return self.outcomes[name].numbers if name in self.outcomes else {}

    def leave_out(self, name: str, why: str) -> Outcome:
        outcome = Outcome(name, verdict=f"left out: {why}")
        return outcome if self.unwanted(name) else self.end(outcome)

    def run(self, name: str, words: list[str], limit: float, environment: dict[str, str] | None = None,
            read: Callable[[Outcome, pathlib.Path], object] = lambda outcome, folder: None, **numbers) -> Outcome:  # fmt: skip
        """A row. {folder} in its words is a folder that is removed behind it; before, `read` looks into that, however it ended."""
        outcome = Outcome(name, numbers=numbers)
        if self.unwanted(name):
            return outcome
        program = shutil.which(words[0], path=f"{self.programs}:{os.environ['PATH']}")
        if not program:
            return self.leave_out(name, f"there is no {words[0]} here")
        shown = [word for word in words if not word.startswith("--job.dump_folder=")]
        outcome.command = self.without_paths(" ".join([*(f"{k}={v}" for k, v in (environment or {}).items()), *shown]))
        if self.seconds_left() < LEAST_SECONDS:
            return self.end(outcome)
        try:
            made = tempfile.TemporaryDirectory(prefix="titan-gpu-", dir=roomy(), ignore_cleanup_errors=True)
        except OSError as error:
            return self.leave_out(name, f"its folder could not be made: {error.strerror}")
        with made as folder:
            self.hidden.insert(0, pathlib.Path(folder))
            command = [program, *(word.replace("{folder}", folder) for word in words[1:])]
            ended = self.start(outcome, command, limit, {"TMPDIR": folder} | (environment or {}))
            if ended == FROM_OUTSIDE:
                self.end(outcome)
                raise KeyboardInterrupt
            try:
                read(outcome, pathlib.Path(folder))
            except Exception as error:  # whatever it wrote, the rows after it are run
                outcome.verdict = f"what it wrote could not be read: {type(error).__name__} {self.without_paths(str(error))}"
            outcome.verdict = outcome.verdict if ended == "ok" else ended
        return self.end(outcome)

    def start(self, outcome: Outcome, command: list[str], limit: float, environment: dict[str, str]) -> str:
        """How it ended."""
        show(f"{outcome.name}: {outcome.command}")
        self.write(self.log, f"$ {outcome.command}\n")  # first: if all is lost, it is seen which row it was
        begin, outcome.limit, self.logged = time.monotonic(), min(limit, self.seconds_left()), 0
        try:
            code, printed = execute(command, outcome.limit, environment, functools.partial(self.write_log, whole=False))
            over = "not over" if outcome.limit == limit else "cut off"
            outcome.verdict = f"{over} after {outcome.limit:.0f} s" if code is None else f"exit code {code}" if code else "ok"
            if code and REFUSAL in printed:
                outcome.verdict = REFUSED
            elif code == NOT_FINITE_CODE:
                outcome.verdict = NOT_FINITE
        except KeyboardInterrupt as stopped:
            printed, outcome.verdict = "".join(stopped.args), FROM_OUTSIDE
        outcome.seconds, outcome.printed = time.monotonic() - begin, self.without_paths(printed)
        self.write_log(printed + "\n")
        return outcome.verdict


def with_options(words: list[str], extra: Iterable[str]) -> list[str]:
    """`extra` in place of what the words say of the same options."""
    names = {word.split("=")[0] for word in extra}
    return [word for word in words if word.split("=")[0] not in names] + [*extra]


def ran_all(run: Outcome, _: object) -> None:
    """Of GoogleTest, which calls it a success when tests are skipped, or when none runs."""
    skipped = re.search(r"^\[  SKIPPED \] (\d+ tests?), listed below", run.printed, re.MULTILINE)
    if skipped or not re.search(r"^\[  PASSED  \] [1-9]", run.printed, re.MULTILINE):
        run.verdict = f"failed: left out {skipped[1]}" if skipped else "failed: no test ran"


def end_of(printed: str) -> list[str]:
    """The lines that show what went wrong: the last ones; of GoogleTest first what the first failing cases say."""
    lines = []
    for case in re.findall(r"^(\[ RUN      \] .*\n(?:(?!\[ ).*\n)*\[  FAILED  \] .*)", printed, re.MULTILINE)[:FAILURES]:
        said = case.splitlines()
        left = len(said) - FAILURE_LINES
        lines += said if left <= 1 else [*said[: FAILURE_LINES - 1], f"… {left} lines", said[-1]]
    return [*lines, *(["…"] if lines else []), *printed.splitlines()[-SHOWN_LINES:]]


def how_they_ended(outcomes: Iterable[Outcome]) -> list[str]:
    """For a page, of rows that were started and did not go well."""
    lines = []
    for run in (run for run in outcomes if run.command and run.verdict != "ok"):
        lines += ["", f"## {run.name}", "", f"    {run.command}", ""]
        lines += [f"    {line}".rstrip() for line in [*end_of(run.printed), run.verdict]]
    return lines


def table(header: str, rows: list[list[str]]) -> list[str]:
    return [f"| {header} |", "|---|" + "---:|" * header.count("|"), *(f"| {' | '.join(row)} |" for row in rows)]


def results_of(printed: str) -> list[dict]:
    """The JSON objects that a program prints, each beginning on a line of its own; libraries may say more around them. Throws
    ValueError where there is none."""
    found, decoder = [], json.JSONDecoder()
    for start in re.finditer(r"^\{", printed, re.MULTILINE):
        with contextlib.suppress(ValueError):
            found.append(decoder.raw_decode(printed, start.start())[0])
    if not found:
        raise ValueError("no line is a JSON object")
    return found
