"""Driver of first.sh, bench.sh and check.sh: which rows run in which order, the page, and the table at the end. Needs no
package; only the baseline needs Python's torch."""

import argparse
import contextlib
import datetime
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import bench
import card as cards
import check
from programs import NOT_FINITE, REFUSED, ROOT, Outcome, Session, adopt_orphans, execute, how_they_ended, roomy, show, table, with_options

SCRIPTS = {"first": (400, "The first minutes on a card"), "bench": (480, "Training on one GPU"), "check": (420, "GPU check")}
PROGRAMS = ["titan_train", "kernels_test", "bench_device_ceiling", "bench_kernel_rates"]
RANKS = ["fsdp2", "tp2", "fsdp2-fused"]
REST = ["bf16", "bf16-fused", "float8", "float8-fused", "sync-check-fused", "deterministic", "documents", "one-fused", "offload"]
GOOD = ("ok", REFUSED, "left out: needs", "left out: no shape", "left out: there is no")
TABLE_LINES, TABLE_WIDTH = 60, 180
PROFILED = ["rms_norm_backward", "adam", "exact_squares", "cross_entropy", "float8_cast"]  # kernels of src/kernels
SANITIZER = ["compute-sanitizer", "--target-processes", "all", "--tool"]
# Where containers have nvidia-smi and others when PATH does not say so.
TOOL_FOLDERS = ["/usr/local/nvidia/bin", "/usr/bin", "/usr/local/bin", "/opt/nvidia/bin", "/usr/local/cuda/bin"]
COMPARE = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from baseline import read_dump
a, b = (read_dump(pathlib.Path(name), "cpu") for name in sys.argv[2:])
def off(key):
    x, y = a[key].double(), b[key].double()
    return ((x - y).norm() / max(y.norm().item(), 1e-30)).nan_to_num(9e99).item() if x.shape == y.shape else 9e99
far = {key: off(key) for key in b if key in a}
print(len(far), "tensors in both, by relative distance:", *(f"\\n{far[key]:.2e}  {key}" for key in sorted(far, key=far.get, reverse=True)[:25]))
sys.exit(0 if far else "there are none")
"""


class Visit:
    def __init__(self, arguments: argparse.Namespace, card: cards.Card | None, begin: float):
        self.arguments, self.out, self.card = arguments, arguments.out, card
        self.session = Session(arguments, begin, self.save)
        self.speeds = bench.Bench(self.session, self.card, self.out)
        self.checks = check.Checks(self.session)

    def rows(self, limit: float, *names: str) -> list[Outcome]:
        """Of speed, of the debug model and of unit tests."""
        kinds = dict.fromkeys(check.TESTS, self.checks.unit_tests) | dict.fromkeys(check.BY_NAME, self.checks.train)
        return [kinds.get(name, self.speeds.train)(name, limit) for name in names]

    def machine(self) -> None:
        libraries = " ".join(f"'{path}'" for path in sorted((self.session.programs / "lib").glob("*titan*")))
        script = f"uname -a; {sys.executable} --version; df -h \"$TMPDIR\" /dev/shm; ! ldd {libraries} | grep 'not found'"
        # As the start script sets it (cmake/start.sh).
        folders = [self.session.programs / "lib", (torch := cards.torch_folder()) / "lib", *torch.parent.glob("nvidia/*/lib")]
        path = ":".join([*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")])
        self.session.run("machine", ["sh", "-c", script], 20, {"LD_LIBRARY_PATH": path})
        self.session.run("clocks and power", ["nvidia-smi", "-q", "-d", "CLOCK,POWER"], 20)

    def first(self) -> None:
        self.machine()
        single, fused = self.rows(50, "single", "fused")  # other losses are for the second command
        # If only the first of all starts fails, it may have been a cold one.
        again = self.crash((single if single.crashed else fused).name) if fused.crashed else fused
        if single.crashed and not again.ended:  # what needs no titan_train
            self.speeds.kernel_rates(25)
            self.speeds.baseline("compiled", 100)
            return self.speeds.baseline("eager", 45)
        self.rows(30, "1b-bf16-traced")
        if self.speeds.plan("8b-bf16-traced")["fits"]:
            self.rows(50, "8b-bf16-traced", "8b-float8-traced")
        else:
            self.rows(30, "8b_16_layers-bf16-traced", "8b_8_layers-bf16-fused")
            if not self.speeds.plan("8b_8_layers-bf16-fused")["fits"]:
                self.rows(24, "8b_2_layers-bf16-traced")
            self.rows(50, "8b_recomputed-bf16-fused")
            self.rows(30, "8b_16_layers-float8-traced")
            self.rows(44, "8b_recomputed-float8-fused")
        self.speeds.ceilings("8b-bf16-traced", 50, bench.WHOLE)
        self.speeds.kernel_rates(25)
        self.speeds.baseline("compiled", 100)
        self.rows(25, "kernels_test")
        self.rows(20, *REST)
        if self.speeds.plan("8b-bf16-traced")["fits"]:
            self.rows(40, "8b-bf16-fused")
        self.rows(30, "3b-bf16-fused", "3b-float8-fused", "1b-bf16-fused")
        self.speeds.baseline("eager", 45)
        self.rows(40, *RANKS)

    def crash(self, row: str = "") -> Outcome:
        """A row that crashed or hung, and how it ended with waits. What is slow with a tool takes the debug model, or two layers of 8B."""
        row = row or self.arguments.row
        kind, rest = (self.checks, None) if row in check.BY_NAME else (self.speeds, row.partition("-")[2])
        waited = kind.train(row, 50, f"{row}, each launch waited for", environment={"CUDA_LAUNCH_BLOCKING": "1"})
        self.rows(25, "kernels_test")
        words = self.speeds.words_of(f"8b_2_layers-{rest}") if rest else self.checks.words_of(check.BY_NAME[row], self.session.device)[1:]
        job = [str(self.session.programs / "titan_train"), *with_options(words, ["--training.steps=2"])]
        self.session.run("memcheck", [*SANITIZER, "memcheck", *job], 90)
        gdb = ["cuda-gdb", "-batch", "-ex", "run", "-ex", "bt", "--args", "/bin/sh", "-c", 'exec "$0" "$@"']
        self.session.run("backtrace", [*gdb, *job], 60)
        return waited

    def bench(self) -> None:
        rows = self.arguments.only.split(",") if self.arguments.only else bench.ROWS
        self.rows(bench.RUN_SECONDS, *rows)
        for row in {row.split("-")[0]: row for row in rows}.values():
            self.speeds.ceilings(row)
        self.rows(check.RUN_SECONDS, "kernels_test")
        self.speeds.kernel_rates()
        self.rows(check.RUN_SECONDS, *with_others({"one"}))

    def check(self) -> None:
        self.rows(check.RUN_SECONDS, *check.TESTS, *check.BY_NAME)

    def wrong_numbers(self) -> None:
        row = check.BY_NAME[self.arguments.row]
        self.rows(20, *with_others({row.name}))
        with tempfile.TemporaryDirectory(prefix="titan-gpu-", dir=roomy()) as folder:
            self.session.hidden.append(pathlib.Path(folder))
            files = {device: pathlib.Path(folder) / f"{device}.safetensors" for device in (self.session.device, "cpu")}
            for device, file in files.items():
                words = with_options(self.checks.words_of(row, device), ["--debug.dump_steps=1", "--training.steps=1"])
                keep = lambda _, folder, file=file: shutil.move(folder / "debug" / "step-1" / "step.safetensors", file)
                self.session.run(f"step 1 on {device}", words, 40, read=keep)
            words = [str(pathlib.Path(__file__).parent), *(str(files[device]) for device in (self.session.device, "cpu"))]
            self.session.run("tensors that differ", [sys.executable, "-c", COMPARE, *words], 40, read=say_the_first)
        cases = [str(self.session.programs / "kernels_test"), f"--gtest_filter={self.arguments.cases or check.TESTS['kernels_test']}"]
        for tool in ("racecheck", "initcheck"):
            self.session.run(tool, [*SANITIZER, tool, *cases], 45)
        for part in ("model", "loss"):
            self.checks.train(row.name, 20, f"{row.name}, fused {part} alone", (check.FUSED, f"--compile.components={part}"))

    def slow_products(self) -> None:
        self.speeds.ceilings("8b-bf16-fused", 60, bench.WHOLE)
        self.speeds.train("8b-bf16-fused", 90, "8b, a minute", ("--training.steps=70",))
        self.speeds.train("8b-bf16-fused", 40, "8b, gradients in fp32", ("--training.gradient_dtype=float32",))

    def slow_attention(self) -> None:
        for kernel in ("cudnn", "flash", "efficient"):
            self.speeds.train("8b-bf16-fused", 40, f"8b, attention by {kernel}", (f"--debug.attention_kernel={kernel}",))
        self.profile("sdpa|flash|fmha|cudnn", "8b_2_layers-bf16-fused", 4, "--debug.attention_kernel=cudnn")

    def profile(self, kernels: str, row: str, count: int = 2, *extra: str) -> None:
        """Their first launches of a step: one process for each kind of kernel, because they are counted over all names."""
        ncu = ["ncu", "--clock-control", "none", "--section", "SpeedOfLight", "--section", "Occupancy", "--target-processes", "all"]
        ncu += ["--launch-count", str(count), "--kernel-name", f"regex:{kernels}", str(self.session.programs / "titan_train")]
        words = with_options(self.speeds.words_of(row), ["--training.steps=1", "--compile.cuda_graphs=false", *extra])
        self.session.run(f"ncu {kernels}", [*ncu, *words], 25)

    def all_well(self) -> None:
        for kernels in PROFILED:
            self.profile(kernels, "8b_2_layers-float8-fused")
        self.rows(50, "8b-bf16-plain", "3b-bf16-plain")
        for parts in (0, 2, 8):  # 0: as the plan chooses
            self.speeds.train("8b-bf16-fused", 40, f"8b, {parts or 'planned'} parts of the logits", (f"--training.loss_chunks={parts}",))
        self.rows(20, *with_others({name for name in check.BY_NAME if name not in [*REST, *RANKS]}))

    def baseline_lines(self) -> list[str]:
        lines = []
        for mode in ("compiled", "eager"):
            if "tokens_per_second" in (other := self.session.numbers_of(f"baseline {mode}")):
                rows = [f"{other['key']}-bf16-{kind}" for kind in ("fused", "traced")]
                own = [(row, tps) for row in rows if (tps := self.session.numbers_of(row).get("tokens_per_second"))]
                said = [f"{tps / other['tokens_per_second']:.3f} by {row}{', without CUDA graphs' * row.endswith('traced')}" for row, tps in own]
                lines.append(f"titan / {mode} PyTorch, {other['key']}: {[*said, 'titan is missing'][0]}")
        return lines

    def page(self) -> str:
        arguments, session = self.arguments, self.session
        machine = str(self.card) if self.card else f"no GPU, --device {session.device}"
        given = {key: value for key in ("device", "only", "variant", "cases") if (value := getattr(arguments, key)) not in ("", "cuda", None)}
        given |= {"row": arguments.row} if arguments.variant in ("wrong-numbers", "crash") else {}
        command = " ".join([f"scripts/gpu/{arguments.script}.sh", *(f"--{key} {value}" for key, value in given.items())])
        lines = [f"# {SCRIPTS[arguments.script][1]}, {datetime.date.today()}", ""]
        lines += [f"Commit {arguments.commit}; {machine}; {session.total - session.seconds_left():.0f} s. Made by", "", f"    {command}"]
        lines += [f"\n{said}" for said in [*session.sentences, *self.baseline_lines()]]
        rows = [[run.name, f"{run.seconds:.1f}", self.told(run)] for run in session.outcomes.values()]
        lines += ["", *table("row | seconds | ", rows), *bench.speed_lines(self.speeds), *check.check_lines(session)]
        return "\n".join([*lines, *bench.kernel_lines(session), *how_they_ended(session.outcomes.values())]) + "\n"

    def told(self, run: Outcome) -> str:
        with contextlib.suppress(Exception):  # numbers that are not as they should be
            return bench.told(self.speeds, run)
        return run.verdict

    def next_step(self) -> str:
        """The second command that this one asks for: by the first row that went wrong, or by the part that loses most time."""
        runs = self.session.outcomes
        ran = [name for name, run in runs.items() if run.ended and name in [*check.BY_NAME, *bench.ALL_ROWS]]
        if "single" in runs and runs["single"].crashed and not ran:
            return "none of the variants; first mend what keeps the row single from running"
        asked = {name: variant for name, run in runs.items() if (variant := self.asked_by(run))}
        if first := [variant for name, variant in asked.items() if name not in RANKS]:
            return first[0]
        said = "\n".join(line for run in runs.values() if run.name.startswith("8b") for line in bench.expectation(run))
        late = re.findall(r"([\d.]+) ms more than expected.*--variant ([a-z-]+)", said)
        if late or asked:
            return f"--variant {max(late, key=lambda part: float(part[0]))[1]}" if late else next(iter(asked.values()))
        unplanned = [run.verdict for run in runs.values() if run.verdict.startswith("left out: titan_train plan")]
        return f"none of the variants; first mend what rows were left out for: {unplanned[0][10:]}" if unplanned else "--variant all-well"

    def asked_by(self, run: Outcome) -> str:
        """The second command for a row that went wrong."""
        runs, name, debug = self.session.outcomes, run.name, run.name in check.BY_NAME
        tests = runs.get("kernels_test")
        cases = check.failed_cases(tests) if tests and tests.crashed else []
        told = f" --cases {':'.join(cases)}" if cases else ""
        diagnosed = run.crashed and (name == "fused" or f"{name}, each launch waited for" in runs)
        if debug and (run.verdict.startswith(("failed", "what")) or diagnosed):
            return f"--variant wrong-numbers --row {name}{told}"
        if run.verdict == NOT_FINITE and name in bench.ALL_ROWS:  # the debug model's row of the same kind
            _, precision, mode = name.split("-")
            return f"--variant wrong-numbers --row {precision}{'' if mode == 'plain' else '-fused'}{told}"
        if name == "single" and run.verdict.startswith("not over"):
            return ""  # others ran: it was the cold start
        if run.crashed and (debug or name in bench.ALL_ROWS):
            return f"--variant crash --row {name}"
        return f"--variant wrong-numbers{told}" if run is tests and run.crashed else ""

    def table(self) -> str:
        lines = [*self.session.sentences, *self.baseline_lines()]
        lines += [f"{run.name:<30} {run.seconds:6.1f} s  {self.told(run)}" for run in self.session.outcomes.values()]
        last = [] if self.session.only or self.arguments.variant else [f"next: first.sh {self.next_step()}"]
        return "\n".join([*(line[:TABLE_WIDTH] for line in lines[: TABLE_LINES - 1]), *last])

    def made(self, what: Callable[[], str]) -> str:
        """Numbers that are not as they should be cost the page, and no row."""
        try:
            return what()
        except Exception as error:
            self.session.say(f"The {what.__name__} could not be made of these numbers: {type(error).__name__} {error}")
            return "\n".join(self.session.sentences)

    def save(self) -> None:
        self.session.write(self.arguments.page, self.made(self.page), "w")

    def go(self) -> int:
        recorder = cards.start_recorder(self.out) if self.out and self.card else None
        whole = False
        try:
            getattr(self, (self.arguments.variant or self.arguments.script).replace("-", "_"))()
            whole = True
        except KeyboardInterrupt:
            self.session.say("Ended from outside: what had run until then is here.")
        except Exception as error:  # of these scripts; what ran is printed all the same
            self.session.say(f"No more rows were run: {type(error).__name__} {error}")
            self.session.write(self.session.log, traceback.format_exc())
        finally:
            if recorder:
                cards.end_recorder(recorder)
            if missing := [name for name in self.session.only if name not in self.session.outcomes]:
                self.session.say(f"There was no row {', '.join(missing)}.")
            self.save()
        show(self.made(self.table if self.arguments.script == "first" else self.page).rstrip(), sys.stdout)
        return 0 if whole and not missing and all(run.verdict.startswith(GOOD) for run in self.session.outcomes.values()) else 1


def say_the_first(run: Outcome, _: object) -> None:
    """Behind the verdict, of what it printed; of a failure the last, which names it."""
    lines = run.printed.splitlines()
    run.told = ": " + ";".join(lines[:4] if run.verdict == "ok" else lines[-1:])


def with_others(names: set[str]) -> list[str]:
    """Rows of the debug model, with those that they are compared with."""
    for row in reversed(check.ROWS):
        if row.name in names:
            names.add(row.against)
    return [name for name in check.BY_NAME if name in names]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.error = refuse
    add = parser.add_argument
    add("script", choices=SCRIPTS)
    for name in ("commit", "only", "cases"):
        add(f"--{name}", default="")
    for name in ("packed", "page", "log", "out"):
        add(f"--{name}", type=pathlib.Path)
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--seconds", type=float)
    add("--row", choices=[*check.BY_NAME, *bench.ALL_ROWS], default="fused")
    add("--variant", choices=["wrong-numbers", "crash", "slow-products", "slow-attention", "all-well"])
    add("--losses", action="store_true")
    a = parser.parse_args()
    known = {"bench": bench.ALL_ROWS, "check": [*check.TESTS, *check.BY_NAME]}.get(a.script)
    if known and (unknown := [name for name in a.only.split(",") if name and name not in known]):
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(known)}")
    a.seconds = a.seconds or (240 if a.variant else SCRIPTS[a.script][0])
    a.device = "cpu" if a.losses else a.device
    a.results = a.out and a.out / "results.jsonl"
    a.log = a.log or (a.out and a.out / "log.txt")
    if a.variant == "wrong-numbers" and a.row not in check.BY_NAME:
        parser.error(f"--variant wrong-numbers compares a row of check.sh, and {a.row} is none")
    pages = folder if (folder := ROOT / "docs" / "benchmarks").is_dir() else pathlib.Path.cwd()  # a package has none
    a.page = a.page or (a.out / "page.md" if a.out else pages / f"gpu-{a.script}-{datetime.date.today()}.md")
    return a


def refuse(sentence: str, code: int = 64) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(code)


def find_programs(arguments: argparse.Namespace) -> None:
    """Sets where they are, and of which commit: packed ones, beside these scripts or elsewhere, or those of a build."""
    packed = arguments.packed or (ROOT if (ROOT / "lib" / "titan_train").exists() else None)
    arguments.programs = packed or ROOT / "build" / "release"
    if packed:
        subprocess.run(["chmod", "-f", "a+x", *(packed / name for name in PROGRAMS), *packed.glob("lib/*")])  # a copy may have lost that
        if missing := [name for name in PROGRAMS[: 1 if arguments.losses else None] if not (packed / name).exists()]:
            refuse(f"{packed} holds no {missing[0]}; --pack makes build/gpu.tar.xz, which unpacks to such a folder")
    elif code := subprocess.run(["bash", ROOT / "scripts" / "gpu" / "prepare.sh", "build"]).returncode:
        sys.exit(code)
    if not arguments.commit:
        file = arguments.programs / "commit"
        code, told = (0, file.read_text()) if file.exists() else execute(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], 20)
        arguments.commit = told.strip() if code == 0 else "unknown"


def main() -> int:
    begin = time.monotonic()
    arguments = parse()
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *TOOL_FOLDERS])
    with cards.only_one() or refuse("another of these scripts runs on this machine: two would measure each other", 75):
        card = cards.find_card() if arguments.device == "cuda" else None
        if arguments.device == "cuda" and not card:
            refuse("there is no GPU here: neither nvidia-smi nor the driver sees one; --pack makes what a machine with one needs", 69)
        find_programs(arguments)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        visit = Visit(arguments, card, begin)
        if arguments.losses:
            return 0 if visit.checks.write_losses() else refuse("the rows of the CPU did not run", 70)
        for sentence in [*(card.obstacles() if card else []), *cards.obstacles(arguments.out)]:
            visit.session.say(sentence)
        return visit.go()


if __name__ == "__main__":
    adopt_orphans()
    sys.exit(main())
