"""scripts/gpu/first.sh with stand-ins for the card and for the programs: which rows are started, and what is left of them
when they hang, crash, print nothing, fill the disk, or when all is killed."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from program import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import bench  # noqa: E402
import card  # noqa: E402
import check  # noqa: E402
import first  # noqa: E402
import programs  # noqa: E402

# Says of a job what titan_train does; `odd` may hold lines that it runs before its first step.
TRAIN = r"""#!/bin/sh
here=$(dirname "$0") steps=1
echo "$*" >>"$here/calls"
if [ "$1" = plan ]; then
  need=109
  for word in "$@"; do
    case $word in
      *n_layers=16) need=62 ;; *n_layers=8) need=36 ;; *n_layers=2) need=21 ;; *selective) need=74 ;;
      *flavor=1B) need=23 ;; *flavor=3B) need=52 ;;
    esac
  done
  printf '{\n "needed_bytes": %s,\n "tokens_per_second_per_gpu": 10000,\n' $((need * 1073741824))
  printf ' "seconds": { "products": 0.25 },\n "good": { "seconds": { "products": 0.2 }, "tokens_per_second_per_gpu": 11000 }\n}\n'
  exit
fi
[ "$1 $2" != "profile summarize" ] || exec cat "$3"
for word in "$@"; do
  case $word in --job.dump_folder=*) folder=${word#*=} ;; --training.steps=*) steps=${word#*=} ;; esac
done
. "$here/odd"
i=1
while [ $i -le $steps ]; do
  echo "{\"step\": $i, \"loss\": 7.5, \"step_seconds\": 0.8, \"mfu_percent\": 50.5, \"memory_peak_bytes\": 107374182400}"
  i=$((i + 1))
done >"$folder/metrics.jsonl"
mkdir -p "$folder/profile_traces/iteration_20" "$folder/debug/step-1"
echo tensors >"$folder/debug/step-1/step.safetensors"
cat >"$folder/profile_traces/iteration_20/rank0_trace.json" <<'END'
Time by kind, on the device                                                 calls          ms    share
  matrix products                                                             900     300.125    60.0%
  gaps                                                                             10.000     2.0%

END
"""
RATES = '{"copy_bytes_per_second": 4e12, "kernels": [{"name": "a norm", "bytes": 268e6, "seconds": 75e-6}]}'
CEILING = '{"product_seconds": 0.2, "attention_seconds": 0.1, "copy_bytes_per_second": 4e12}'
BASELINE = """
import json
print(json.dumps({"step": 1, "loss": 7.5}))
print(json.dumps({"tokens_per_second": 8000, "max_memory_reserved": 2**36}))
"""
H100, H200 = "NVIDIA H100 80GB HBM3, 580.95, 81040 MiB, 3 MiB", "NVIDIA H200, 580.95, 143771 MiB, 3 MiB"
ALWAYS = ["machine", "clocks and power", "single", "fused", "1b-bf16-traced"]
ON_H100 = ["8b_16_layers-bf16-traced", "8b_8_layers-bf16-fused", "8b_recomputed-bf16-fused", "8b_16_layers-float8-fused",
           "8b_recomputed-float8-fused"]  # fmt: skip
ON_H200 = ["8b-bf16-traced", "8b-float8-fused"]
REST = ["kernel rates", "baseline compiled", "kernels_test", "bf16", "bf16-fused", "float8", "float8-fused", "sync-check-fused",
        "deterministic", "documents", "one-fused", "offload", "3b-bf16-fused", "3b-float8-fused", "1b-bf16-fused",
        "baseline eager", "fsdp2", "tp2", "fsdp2-fused"]  # fmt: skip


class Machine(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="first "))
        self.addCleanup(shutil.rmtree, self.folder)
        self.programs, self.out = self.folder / "programs", self.folder / "out"
        for name in ("programs", "bin", "tmp"):
            (self.folder / name).mkdir()
        self.tool("programs/titan_train", TRAIN)
        self.tool("programs/kernels_test", "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\n")
        self.tool("programs/bench_kernel_rates", f"#!/bin/sh\necho '{RATES}'\n")
        self.tool("programs/bench_device_ceiling", f"#!/bin/sh\necho '{CEILING}'\n")
        self.behave("")
        self.card(H100)
        self.torch("2.11.0+cu130")
        self.tool("baseline.py", BASELINE)
        (self.folder / "losses.json").write_text(json.dumps(dict.fromkeys(check.ON_CPU, [7.5] * check.STEPS)))

    def tool(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def behave(self, lines: str) -> None:
        self.tool("programs/odd", lines)

    def card(self, line: str) -> None:
        self.tool("bin/nvidia-smi", f"#!/bin/sh\ncase $1 in dmon) exec sleep 600 ;; -q) echo clocks ;; *) echo '{line}' ;; esac\n")

    def torch(self, version: str) -> None:
        self.tool("python/torch/version.py", f'__version__ = "{version}"\n')

    def variables(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "TMPDIR": str(self.folder / "tmp")}

    def script(self, *words: str, code: int = 0) -> str:
        """What first.sh prints, as a command of its own."""
        command = ["bash", ROOT / "scripts/gpu/first.sh", "--packed", self.programs, "--out", self.out, *words]
        done = subprocess.run(command, env=os.environ | self.variables(), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def driver(self, *words: str, code: int = 1, hanging: tuple[str, ...] = ()) -> str:
        """What it prints, within this process; the row with the words `hanging` has a second, in which the others cannot hang."""
        execute = programs.execute

        def shortened(command, limit, environment):
            return execute(command, min(limit, 1) if hanging and set(hanging) <= set(command) else limit, environment)

        arguments = ["first.py", "first", "--packed", self.programs, "--commit", "abc", "--out", self.out, *words]
        with contextlib.ExitStack() as stack:
            for patched in (
                unittest.mock.patch.dict(os.environ, self.variables()),
                unittest.mock.patch.object(tempfile, "tempdir", None),
                unittest.mock.patch.object(card, "torch_folder", lambda: self.folder / "python" / "torch"),
                unittest.mock.patch.object(programs, "execute", shortened),
                unittest.mock.patch.object(bench, "BASELINE", self.folder / "baseline.py"),
                unittest.mock.patch.object(check, "LOSSES", self.folder / "losses.json"),
            ):
                stack.enter_context(patched)
            stack.enter_context(unittest.mock.patch.object(sys, "argv", [str(word) for word in arguments]))
            printed = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            self.assertEqual(first.main(), code, printed.getvalue())
        return printed.getvalue()

    def results(self) -> dict[str, dict]:
        lines = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return {line["row"]: line for line in lines}

    def trained(self) -> list[str]:
        """The jobs that were started, without those that were planned."""
        calls = (self.programs / "calls").read_text().splitlines()
        return [call for call in calls if not call.startswith(("plan ", "profile "))]

    def expect_rows(self, rows: list[str]) -> dict[str, dict]:
        found = self.results()
        self.assertEqual([row for row in found if not row.endswith("-ceiling")], rows)
        return found


class EveryRow(Machine):
    def test_an_h100_runs_what_fits_it_in_the_order_that_tells_most(self):
        printed = self.driver(code=0)
        found = self.expect_rows([*ALWAYS, *ON_H100, *REST])
        self.assertEqual({row["verdict"] for row in found.values()}, {"ok"})
        whole = [call for call in self.trained() if "flavor=8B" in call and "n_layers" not in call and "selective" not in call]
        self.assertEqual(whole, [])
        lines = printed.splitlines()
        self.assertLessEqual(len(lines), first.TABLE_LINES)
        self.assertLessEqual(len(printed), 12000)
        self.assertEqual(lines[-1], "next: first.sh --variant slow-products")  # 300 ms of them, where 200 to 250 are expected
        self.assertIn("titan / compiled PyTorch, 8b_16_layers: 1.280", lines)
        files = sorted(path.name for path in self.out.iterdir())
        traces = ["trace-1b-bf16-traced.json.gz", "trace-8b_16_layers-bf16-traced.json.gz"]
        self.assertEqual(files, ["baseline.jsonl", "dmon.txt", "log.txt", "page.md", "results.jsonl", *traces])
        for trace in traces:
            self.assertIn(b"matrix products", gzip.decompress((self.out / trace).read_bytes()))
        for call in self.trained():
            if "--profiling.enable_profiling" in call:
                self.assertIn("--compile.cuda_graphs=false", call)
        page = (self.out / "page.md").read_text()
        self.assertNotIn(str(self.folder), page)
        self.assertRegex(page, r"\| 8b_16_layers-bf16-traced \| [\d.]+ \| 10,240 tokens/s .*, 100.0 GiB, MFU 50.5 %, likely 10,000, good 11,000")
        self.assertIn("| products | 300.1 | 200.0 | 250.0 | 50.1 ms more |", page)

    def test_an_h200_runs_the_whole_8b(self):
        self.card(H200)
        self.driver(code=0)
        self.expect_rows([*ALWAYS, *ON_H200, *REST])
        self.assertEqual([call for call in self.trained() if "n_layers" in call or "selective" in call], [])

    def test_a_card_of_24_gb_runs_the_debug_model_and_says_why_it_runs_no_other(self):
        self.card("NVIDIA A10G, 580.95, 23028 MiB, 3 MiB")
        printed = self.driver(code=0)
        self.assertIn("NVIDIA A10G is none of H200, H100, B200, A100: ", printed)
        found = self.results()
        self.assertEqual(found["8b_16_layers-bf16-traced"]["verdict"], "left out: needs 62.0 GiB of 22.5")
        self.assertEqual(found["baseline compiled"]["verdict"], "left out: no shape of 8B fits")
        self.assertEqual([call for call in self.trained() if "flavor=8B" in call and "n_layers=2" not in call], [])
        self.assertTrue(all(found[row]["verdict"] == "ok" for row in ["single", *first.REST, *first.RANKS]))

    def test_the_second_command_runs_a_variant(self):
        rows = {
            "wrong-numbers": ["step 1 on cuda", "step 1 on cpu", "tensors that differ", "fused, fused model alone"],
            "slow-products": ["8b, a minute", "8b, gradients in fp32"],
            "slow-attention": ["8b, attention by cudnn", "8b, attention by flash", "8b, attention by efficient"],
            "all-well": ["8b_recomputed-bf16-plain", "3b-bf16-plain", "8b, 2 chunks of the loss", "8b, 4 chunks of the loss", "tp2-fused"],
        }
        for variant, wanted in rows.items():
            with self.subTest(variant):
                shutil.rmtree(self.out, ignore_errors=True)
                self.driver("--variant", variant, code=1 if variant == "wrong-numbers" else 0)
                found = self.results()
                self.assertEqual([row for row in wanted if row not in found], [])
                wrong = {row: line for row, line in found.items() if line["verdict"] != "ok" and row != "tensors that differ"}
                self.assertEqual({line["verdict"].split(":")[0] for line in wrong.values()}, {"left out"} if wrong else set())
                for words in (line["command"].split() for line in found.values()):
                    options = [word.split("=")[0] for word in words if word.startswith("--") and "=" in word]
                    self.assertEqual(sorted(options), sorted(set(options)))  # none twice


class Trouble(Machine):
    def test_rows_that_hang_crash_write_nothing_print_without_end_or_fill_the_disk_leave_the_others_alone(self):
        self.behave(
            """case "$*" in
              *flavor=3B*quantize*) sleep 600 & wait ;;
              *flavor=3B*) echo a message; kill -SEGV $$ ;;
              *groups_of_one*) exit 0 ;;
              *deterministic*) head -c 9000000 /dev/zero | tr "\\0" x ;;
              *sync_check*) exec dd if=/dev/zero of="$folder/much" bs=1M count=1 seek=1100 ;;
            esac
            """
        )
        self.driver(hanging=("--model.flavor=3B", "--model.converters=quantize.linear.float8"))
        found = self.expect_rows([*ALWAYS, *ON_H100, *REST])
        verdicts = {name: line["verdict"] for name, line in found.items() if line["verdict"] != "ok"}
        self.assertEqual(verdicts.pop("sync-check-fused").split()[:2], ["exit", "code"])
        self.assertEqual(verdicts.pop("one-fused").split(":")[0], "what it wrote could not be read")
        self.assertEqual(verdicts, {"3b-float8-fused": "not over after 30 s", "3b-bf16-fused": "exit code -11"})
        self.assertIn("    a message\n    exit code -11\n", (self.out / "page.md").read_text())
        self.assertLess((self.out / "log.txt").stat().st_size, 1 << 20)
        self.assertEqual([path.name for path in (self.folder / "tmp").iterdir()], ["titan-gpu.lock"])
        left = subprocess.run(["pgrep", "-f", str(self.programs)], capture_output=True, text=True)
        self.assertEqual(left.stdout, "")

    def test_a_plan_that_prints_nothing_leaves_its_rows_out(self):
        self.tool("programs/titan_train", TRAIN.replace("  need=109\n", "  exit\n"))
        self.driver()
        found = self.results()
        self.assertEqual(found["1b-bf16-traced"]["verdict"], "left out: titan_train plan ended with 0: nothing was printed")
        self.assertEqual([found[row]["verdict"] for row in ("kernel rates", *first.REST, *first.RANKS)], ["ok"] * 13)

    def test_numbers_that_are_none_cost_the_page_alone(self):
        self.tool("programs/bench_kernel_rates", """#!/bin/sh\necho '{"copy_bytes_per_second": 4, "kernels": [{}]}'\n""")
        printed = self.driver("--only", "single,kernel rates,tp2", code=0)
        self.assertIn("The page could not be made of these numbers: KeyError 'bytes'", printed)
        self.assertEqual(list(self.results()), ["single", "kernel rates", "tp2"])

    def test_a_full_disk_under_the_output_folder(self):
        self.out.mkdir()
        (self.out / "results.jsonl").symlink_to("/dev/full")
        (self.out / "trace-1b-bf16-traced.json.gz").symlink_to("/dev/full")
        printed = self.driver("--only", "single,1b-bf16-traced,tp2", code=0)
        self.assertIn("results.jsonl could not be written: No space left on device", printed)
        self.assertIn("trace-1b-bf16-traced.json.gz could not be written: No space left on device", printed)
        self.assertIn("tp2 ", printed)
        (self.folder / "file").write_text("")
        self.out = self.folder / "file" / "out"
        self.assertIn("The folder out could not be made: Not a directory", self.driver("--only", "single", code=0))
        self.out = self.folder / "another"
        with unittest.mock.patch.object(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 9 << 20)):
            self.assertIn("The disk under another has 9 MiB left", self.driver("--only", "single", code=0))

    def test_a_debug_model_that_crashes_is_diagnosed_and_no_other_job_is_started(self):
        self.behave('case "$*" in plan*) ;; *) exit 70 ;; esac\n')
        self.driver()
        found = self.expect_rows(
            ["machine", "clocks and power", "single", "fused", "single, each launch waited for", "kernels_test", "memcheck",
             "backtrace", "kernel rates", "baseline compiled", "baseline eager"]
        )  # fmt: skip
        self.assertEqual(found["single"]["verdict"], "exit code 70")
        self.assertEqual(found["memcheck"]["verdict"], "left out: there is no compute-sanitizer here")
        self.assertIn("CUDA_LAUNCH_BLOCKING=1 ", found["single, each launch waited for"]["command"])
        self.assertEqual([call for call in self.trained() if "debug_model.toml" not in call], [])

    def test_killed_from_outside_what_ran_is_there(self):
        for row, kept in (("*compile.enable*", ALWAYS[:3]), ("*flavor=3B*", [*ALWAYS, *ON_H100])):
            with self.subTest(row):
                shutil.rmtree(self.out, ignore_errors=True)
                self.behave(f'case "$*" in plan*) ;; {row}) kill -9 $PPID; sleep 600 ;; esac\n')
                self.script(code=-signal.SIGKILL)
                self.assertEqual(list(self.results())[: len(kept)], kept)
                self.assertIn(f"| {kept[-1]} |", (self.out / "page.md").read_text())
                last = [line for line in (self.out / "log.txt").read_text().splitlines() if line.startswith("$ ")][-1]
                self.assertIn("--compile.enable", last)

    def test_asked_to_end_it_prints_the_table_of_what_ran(self):
        self.behave('case "$*" in *compile.enable*) kill -TERM $PPID; sleep 600 ;; esac\n')
        printed = self.script(code=1)
        self.assertIn("Ended from outside", printed)
        self.assertIn("single  ", printed)


class Sentences(Machine):
    """One each about what stands in the way; the rows that can run do."""

    def said(self, line: str, sentence: str) -> None:
        self.card(line)
        printed = self.driver("--only", "single", code=0)
        self.assertIn(sentence, printed)
        self.assertEqual(self.results()["single"]["verdict"], "ok")

    def test_of_a_card_that_is_not_known(self):
        self.said("NVIDIA X9, 580.95, 81040 MiB, 3 MiB", "NVIDIA X9 is none of H200, H100, B200, A100")

    def test_of_a_driver_that_is_too_old(self):
        self.said("NVIDIA H100 80GB HBM3, 535.129, 81040 MiB, 3 MiB", "The driver 535.129 is too old for CUDA 13 (it takes 580 or newer)")

    def test_of_another_process_on_the_card_whose_memory_is_not_planned_with(self):
        self.said("NVIDIA H200, 580.95, 143771 MiB, 70000 MiB", "Another process has 70,000 MiB of the card")
        self.driver("--only", ",".join(ON_H100), code=0)
        self.assertEqual(self.results()["8b_recomputed-bf16-fused"]["verdict"], "left out: needs 74.0 GiB of 72.0")

    def test_of_another_torch(self):
        self.torch("2.9.1")
        self.said(H100, "Python has torch 2.9.1 where 2.11.0 is needed")

    def test_of_a_second_start(self):
        with open(self.folder / "tmp" / "titan-gpu.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.script(code=75)
        self.assertFalse(self.out.exists())

    def test_of_a_machine_without_a_card(self):
        (self.folder / "bin" / "nvidia-smi").unlink()
        self.script(code=69)


if __name__ == "__main__":
    unittest.main()
