"""scripts/gpu/first.sh with stand-ins for the card and for the programs: which rows are started, and what is left of them
when they hang, crash, print nothing, fill the disk, or when all is killed."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import io
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
  printf '{\n "needed_bytes": %s,\n "tokens_per_second_per_gpu": 10000, "loss_chunks": 4,\n' $((need * 1073741824))
  printf ' "seconds": { "products": 0.25, "swiglu": 0.02, "norm": 0.01 },\n'
  printf ' "good": { "seconds": { "products": 0.2 }, "tokens_per_second_per_gpu": 11000 }\n}\n'
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
cp "$here/dump" "$folder/debug/step-1/step.safetensors"
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
PROFILES = ["ncu rms_norm_backward", "ncu adam", "ncu exact_squares", "ncu cross_entropy", "ncu float8_cast"]
ALWAYS = ["machine", "clocks and power", "single", "fused", "1b-bf16-traced"]
ON_H100 = ["8b_16_layers-bf16-traced", "8b_8_layers-bf16-fused", "8b_recomputed-bf16-fused", "8b_16_layers-float8-traced",
           "8b_recomputed-float8-fused"]  # fmt: skip
ON_H200 = ["8b-bf16-traced", "8b-float8-traced"]
REST = ["kernel rates", "baseline compiled", "kernels_test", "bf16", "bf16-fused", "float8", "float8-fused", "sync-check-fused",
        "deterministic", "documents", "one-fused", "offload"]  # fmt: skip
LAST = ["3b-bf16-fused", "3b-float8-fused", "1b-bf16-fused",
        "baseline eager", "fsdp2", "tp2", "fsdp2-fused"]  # fmt: skip


class Machine(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="first "))
        self.addCleanup(shutil.rmtree, self.folder)
        self.programs, self.out = self.folder / "programs", self.folder / "out"
        self.given: dict[str, float] = {}  # seconds, to each command
        for name in ("programs", "bin", "tmp"):
            (self.folder / name).mkdir()
        self.tool("programs/titan_train", TRAIN)
        self.tool("programs/kernels_test", "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\n")
        self.tool("programs/bench_kernel_rates", f"#!/bin/sh\necho '{RATES}'\n")
        self.tool("programs/bench_device_ceiling", f"#!/bin/sh\necho '{CEILING}'\n")
        header = json.dumps({"random": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
        (self.folder / "programs" / "dump").write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
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

        def shortened(command, limit, *rest):
            self.given[" ".join(command)] = limit
            return execute(command, min(limit, 1) if hanging and set(hanging) <= set(command) else limit, *rest)

        arguments = ["first.py", "first", "--packed", self.programs, "--commit", "abc", "--out", self.out, *words]
        with contextlib.ExitStack() as stack:
            for patched in (
                unittest.mock.patch.dict(os.environ, self.variables()),
                unittest.mock.patch.object(tempfile, "tempdir", None),
                unittest.mock.patch.object(card, "torch_folder", lambda: self.folder / "python" / "torch"),
                unittest.mock.patch.object(card, "LOCKS", []),
                unittest.mock.patch.object(programs, "execute", shortened),
                unittest.mock.patch.object(bench, "execute", shortened),
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
        found = self.expect_rows([*ALWAYS, *ON_H100, *REST, *LAST])
        self.assertEqual({row["verdict"] for row in found.values()}, {"ok"})
        whole = [call for call in self.trained() if "flavor=8B" in call and "n_layers" not in call and "selective" not in call]
        self.assertEqual(whole, [])
        lines = printed.splitlines()
        self.assertLessEqual(len(lines), first.TABLE_LINES)
        self.assertLessEqual(len(printed), 12000)
        self.assertEqual(lines[-1], "next: first.sh --variant slow-products")  # 300 ms of them, where 200 to 250 are expected
        self.assertIn("titan / compiled PyTorch, 8b_16_layers: 1.280 by 8b_16_layers-bf16-traced, without CUDA graphs", lines)
        ceiling = "ok: a step's products 200.0 ms, attention 100.0 ms, a copy 4.00 TB/s"
        self.assertRegex("\n".join(lines), rf"8b_16_layers-float8-ceiling +[\d.]+ s  {ceiling}\n")
        self.assertRegex("\n".join(lines), r"kernel rates +[\d.]+ s  ok: a copy 4.00 TB/s; below 85 % of it: none\n")
        files = sorted(path.name for path in self.out.iterdir())
        traces = ["trace-1b-bf16-traced.json.gz", "trace-8b_16_layers-bf16-traced.json.gz"]
        self.assertEqual(files, ["baseline.jsonl", "dmon.txt", "log.txt", "page.md", "results.jsonl", *traces])
        for trace in traces:
            self.assertIn(b"matrix products", gzip.decompress((self.out / trace).read_bytes()))
        planned = [call for call in (self.programs / "calls").read_text().splitlines() if call.startswith("plan ")]
        self.assertEqual({call.partition(" --gpu ")[2] for call in planned}, {"h100-sxm --gpu-memory 79.141 --json"})
        for call in self.trained():
            if "flavor=8B" in call or "flavor=3B" in call or "flavor=1B" in call:
                self.assertIn("--training.loss_chunks=0", call)
            if "--profiling.enable_profiling" in call:
                self.assertIn("--compile.cuda_graphs=false", call)
        page = (self.out / "page.md").read_text()
        self.assertNotIn(str(self.folder), page)
        self.assertRegex(page, r"\| 8b_16_layers-bf16-traced \| [\d.]+ \| 10,240 tokens/s .*, 100.0 GiB, MFU 50.5 %, likely 10,000, good 11,000")
        self.assertIn("| products | 300.1 | 200.0 | 250.0 | 50.1 ms more |", page)
        self.assertIn("8b_16_layers-float8-traced, one traced step | ms |", page)
        # SwiGLU's bytes, 8 of 14336 × 8192 × 16 in bf16, are two thirds of what is not products; 0.2 s, 0.1 s, and a copy's 4 TB/s.
        seconds = 0.3 + 1.5 * 16 * 14336 * 8192 * 16 / 4e12
        self.assertRegex(page, rf"8b_16_layers-float8-traced .* % of the ceiling's {8192 / seconds:,.0f} ")

    def test_an_h200_runs_the_whole_8b(self):
        self.card(H200)
        self.driver(code=0)
        self.expect_rows([*ALWAYS, *ON_H200, *REST, "8b-bf16-fused", *LAST])
        self.assertEqual([call for call in self.trained() if "n_layers" in call or "selective" in call], [])

    def test_a_card_of_24_gb_runs_the_debug_model_and_says_why_it_runs_no_other(self):
        self.card("NVIDIA A10G, 580.95, 23028 MiB, 3 MiB")
        printed = self.driver(code=0)
        self.assertIn("NVIDIA A10G is none of H200, H100 SXM, B200, A100 SXM 80 GB: ", printed)
        found = self.results()
        self.assertEqual(found["8b_16_layers-bf16-traced"]["verdict"], "left out: needs 62.0 GiB of 22.5")
        self.assertEqual(found["baseline compiled"]["verdict"], "left out: no shape of 8B fits")
        self.assertEqual([call for call in self.trained() if "flavor=8B" in call and "n_layers=2" not in call], [])
        self.assertTrue(all(found[row]["verdict"] == "ok" for row in ["single", *first.REST, *first.RANKS]))

    def test_the_second_command_runs_a_variant(self):
        self.tool("bin/ncu", "#!/bin/sh\necho profiled\n")
        rows = {
            "wrong-numbers": ["step 1 on cuda", "step 1 on cpu", "tensors that differ", "fused, fused model alone"],
            "crash": ["fused, each launch waited for", "kernels_test", "memcheck", "backtrace"],
            "slow-products": ["8b, a minute", "8b, gradients in fp32"],
            "slow-attention": ["8b, attention by cudnn", "8b, attention by flash", "8b, attention by efficient", "ncu sdpa|flash|fmha|cudnn"],
            "all-well": [*PROFILES, "8b_recomputed-bf16-plain", "3b-bf16-plain", "8b, planned parts of the logits", "8b, 2 parts of the logits",
                         "8b, 8 parts of the logits", "tp2-fused"],
        }
        for variant, wanted in rows.items():
            with self.subTest(variant):
                shutil.rmtree(self.out, ignore_errors=True)
                self.driver("--variant", variant, code=0)
                found = self.results()
                self.assertEqual([row for row in wanted if row not in found], [])
                wrong = {row: line for row, line in found.items() if line["verdict"] != "ok"}
                self.assertEqual({line["verdict"].split(":")[0] for line in wrong.values()}, {"left out"} if wrong else set())
                for words in (line["command"].split() for line in found.values()):
                    options = [word.split("=")[0] for word in words if word.startswith("--") and "=" in word]
                    self.assertEqual(sorted(options), sorted(set(options)))  # none twice
                shown = f"--variant {variant}" + " --row fused" * (variant in ("wrong-numbers", "crash"))
                self.assertIn(f"\n    scripts/gpu/first.sh {shown}\n", (self.out / "page.md").read_text())

    def test_each_kind_of_kernel_is_profiled_alone_in_one_step(self):
        self.tool("bin/ncu", "#!/bin/sh\necho profiled\n")
        self.driver("--variant", "all-well", "--only", ",".join([*PROFILES, "8b, 2 parts of the logits"]), code=0)
        found = self.results()
        self.assertEqual(list(found), [*PROFILES, "8b, 2 parts of the logits"])
        sources = "".join(path.read_text() for path in (ROOT / "src" / "kernels").glob("*.cu"))
        for name in PROFILES:
            self.assertRegex(sources, rf"\b\w*{name[4:]}\w*_kernel\(")
            self.assertRegex(found[name]["command"], rf"--launch-count 2 --kernel-name regex:{name[4:]} .* --training.steps=1 ")

    def test_the_minute_is_told_by_its_end(self):
        self.card(H200)
        slower = TRAIN.replace("  i=$((i + 1))", "  i=$((i + 1)); [ $i -le 20 ] || seconds=1.0").replace("0.8,", "${seconds-0.8},")
        self.tool("programs/titan_train", slower)
        self.assertRegex(self.driver("--variant", "slow-products", code=0), r"8b, a minute .* 8,192 tokens/s \(8,192 – 8,192\).* 10,240 at first")

    def test_one_attention_kernel_has_no_rate_to_be_held_against(self):
        self.card(H200)
        printed = self.driver("--variant", "slow-attention", code=0)
        self.assertRegex(printed, r"8b, attention by flash .* likely 10,000")
        self.assertNotRegex(printed, r"8b, attention by efficient .* likely")


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
        found = self.expect_rows([*ALWAYS, *ON_H100, *REST, *LAST])
        verdicts = {name: line["verdict"] for name, line in found.items() if line["verdict"] != "ok"}
        self.assertEqual(verdicts.pop("sync-check-fused").split()[:2], ["exit", "code"])
        self.assertEqual(verdicts.pop("one-fused").split(":")[0], "what it wrote could not be read")
        self.assertEqual(verdicts, {"3b-float8-fused": "not over after 30 s", "3b-bf16-fused": "exit code -11"})
        self.assertIn("    a message\n    exit code -11\n", (self.out / "page.md").read_text())
        self.assertLess((self.out / "log.txt").stat().st_size, 1 << 20)
        self.assertEqual([path.name for path in (self.folder / "tmp").iterdir()], ["titan-gpu.lock"])
        left = subprocess.run(["pgrep", "-f", str(self.programs)], capture_output=True, text=True)
        self.assertEqual(left.stdout, "")

    def test_a_plan_that_fails_leaves_out_what_may_not_fit(self):
        for lines, why in (("exit", "0: nothing was printed"), ("echo error: no table; exit 70", "70: error: no table")):
            shutil.rmtree(self.out, ignore_errors=True)
            self.card(H100)
            self.tool("programs/titan_train", TRAIN.replace("  need=109\n", f"  {lines}\n"))
            said = f"titan_train plan ended with {why}"
            printed = self.driver()
            self.assertIn(f"{said}: rows that surely fit are run all the same.", printed)
            self.assertEqual(printed.splitlines()[-1], f"next: first.sh none of the variants; first mend what rows were left out for: {said}")
            found = self.results()
            self.assertEqual(found["8b_recomputed-bf16-fused"]["verdict"], f"left out: {said}")
            rows = ("1b-bf16-traced", "8b_16_layers-bf16-traced", "kernel rates", *first.REST, *first.RANKS)
            self.assertEqual({found[row]["verdict"] for row in rows}, {"ok"})
        self.card(H200)
        self.assertEqual(self.driver(code=0).splitlines()[-1], "next: first.sh --variant all-well")
        self.assertEqual(self.results()["8b-bf16-traced"]["verdict"], "ok")

    def test_a_plan_that_hangs_is_asked_once(self):
        self.tool("programs/titan_train", TRAIN.replace("  need=109\n", "  exec sleep 600\n"))
        self.driver(hanging=("plan",))
        self.assertEqual([call.split()[0] for call in (self.programs / "calls").read_text().splitlines()].count("plan"), 1)
        self.assertLessEqual(max(limit for call, limit in self.given.items() if " plan " in call), bench.PLAN_SECONDS)
        found = self.results()
        self.assertEqual(found["3b-bf16-fused"]["verdict"], "left out: titan_train plan was not over in time")
        self.assertEqual(found["1b-bf16-traced"]["verdict"], "ok")
        self.assertEqual([found[row]["verdict"] for row in ("kernel rates", *first.REST, *first.RANKS)], ["ok"] * 13)

    def test_numbers_of_a_row_that_ended_badly_are_kept(self):
        self.card(H200)
        self.tool("programs/titan_train", TRAIN + 'echo "{\\"step\\": 99" >>"$folder/metrics.jsonl"\ncase "$*" in *flavor=8B*) exit 139 ;; esac\n')
        self.tool("programs/bench_device_ceiling", "#!/bin/sh\necho '{\"product\": \"qkv\", \"tflops\": 600}'\nexit 71\n")
        printed = self.driver()
        found = self.results()
        self.assertEqual(found["8b-bf16-traced"]["verdict"], "exit code 139")
        self.assertEqual(round(found["8b-bf16-traced"]["tokens_per_second"]), 10240)
        self.assertEqual(found["8b-bf16-ceiling"]["calls"], [{"product": "qkv", "tflops": 600}])
        self.assertRegex(printed, r"8b-bf16-traced .* s  exit code 139; 10,240 tokens/s ")
        self.assertIn("next: first.sh --variant crash --row 8b-bf16-traced", printed)

    def test_a_folder_that_cannot_be_made_costs_one_row(self):
        make = tempfile.TemporaryDirectory

        def full_once(*words, **named):
            if not (self.out / "results.jsonl").exists():
                raise OSError(28, "No space left on device")
            return make(*words, **named)

        with unittest.mock.patch.object(tempfile, "TemporaryDirectory", full_once):
            self.driver("--only", "machine,single,tp2")
        verdicts = {row: line["verdict"] for row, line in self.results().items()}
        self.assertEqual(verdicts.pop("machine"), "left out: its folder could not be made: No space left on device")
        self.assertEqual(verdicts, {"single": "ok", "tp2": "ok"})

    def test_folders_of_rows_are_in_memory_where_the_disk_is_full(self):
        for free, wanted in ((1 << 20, "/dev/shm"), (1 << 30, None)):
            usage = {"/dev/shm": 1 << 33}
            with unittest.mock.patch.object(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(1, 1, usage.get(place, free))):
                self.assertEqual(programs.roomy(), wanted)

    def test_a_disk_that_fills_costs_what_is_written_then_and_nothing_before(self):
        arguments = argparse.Namespace(programs=self.programs, device="cuda", log=None, results=None, seconds=60, only="", script="first")
        session, limits = programs.Session(arguments, 0), resource.getrlimit(resource.RLIMIT_FSIZE)
        for mode in ("a", "w"):
            (file := self.folder / mode).write_text("a whole line\n")
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
            try:
                session.write(file, "x" * 20000, mode)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            self.assertEqual(file.read_text(), "a whole line\n")
        self.assertEqual(session.sentences, ["a could not be written: File too large", "w could not be written: File too large"])

    def test_a_fault_of_the_scripts_leaves_the_table(self):
        with unittest.mock.patch.object(bench.Bench, "ceilings", side_effect=AttributeError("a slip")):
            printed = self.driver()
        self.assertIn("No more rows were run: AttributeError a slip", printed)
        self.assertRegex(printed, r"8b_16_layers-bf16-traced .* tokens/s")

    def test_numbers_that_are_none_cost_the_page_alone(self):
        self.tool("programs/bench_kernel_rates", """#!/bin/sh\necho '{"copy_bytes_per_second": 4, "kernels": [{}]}'\n""")
        printed = self.driver("--only", "single,kernel rates,tp2", code=0)
        self.assertIn("The page could not be made of these numbers: KeyError 'bytes'", printed)
        self.assertEqual(list(self.results()), ["single", "kernel rates", "tp2"])

    def test_a_full_disk_under_the_output_folder(self):
        self.out.mkdir()
        (self.out / "results.jsonl").symlink_to("/dev/full")
        (self.out / "trace-1b-bf16-traced.json.gz.new").symlink_to("/dev/full")
        printed = self.driver("--only", "single,1b-bf16-traced,tp2", code=0)
        self.assertIn("results.jsonl could not be written: No space left on device", printed)
        short = [line for line in printed.splitlines() if line.startswith("{")]  # in no file, so before the table
        self.assertEqual([json.loads(line)["verdict"] for line in short], ["ok"] * 3)
        self.assertIn("tokens_per_second", short[1])
        self.assertLess(max(map(len, short)), 300)
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

    def test_a_first_start_that_is_slow_or_fails_once_costs_its_own_row(self):
        self.card(H200)
        for lines, verdict, variant in (("sleep 9", "not over after 50 s", "slow-products"), ("exit 70", "exit code 70", "crash --row single")):
            shutil.rmtree(self.out, ignore_errors=True)
            (self.programs / "once").unlink(missing_ok=True)
            self.behave(f'[ -e "$here/once" ] || {{ touch "$here/once"; {lines}; }}\n')
            printed = self.driver(hanging=("--debug.seed=2",))
            found = self.expect_rows([*ALWAYS, *ON_H200, *REST, "8b-bf16-fused", *LAST])
            self.assertEqual({row: line["verdict"] for row, line in found.items() if line["verdict"] != "ok"}, {"single": verdict})
            self.assertRegex(printed, r"fused .* ok: 0.0e\+00 off cpu at step 1 \(bar 1e-05\), 0.0e\+00 later \(2e-03\)")
            self.assertEqual(printed.splitlines()[-1], f"next: first.sh --variant {variant}")

    def test_what_crashes_unless_its_launches_are_waited_for_stops_no_other_row(self):
        self.card(H200)
        self.behave('case "$CUDA_LAUNCH_BLOCKING $*" in 1*) ;; *debug_model*) exit 70 ;; esac\n')
        printed = self.driver()
        found = self.results()
        self.assertEqual([found[row]["verdict"] for row in ("single, each launch waited for", "8b-bf16-traced")], ["ok", "ok"])
        self.assertEqual(printed.splitlines()[-1], "next: first.sh --variant wrong-numbers --row single")

    def test_numbers_that_are_not_finite_are_no_crash(self):
        self.card(H200)
        for which, row in (("*debug_model*", "single"), ("*debug_model*compile.enable*", "fused"), ("*flavor=8B*", "bf16-fused")):
            with self.subTest(row):
                shutil.rmtree(self.out, ignore_errors=True)
                self.behave(f'case "$*" in {which}) echo error: step 3 has loss nan; exit 72 ;; esac\n')
                printed = self.driver()
                found = self.expect_rows([*ALWAYS, *ON_H200, *REST, "8b-bf16-fused", *LAST])
                self.assertEqual(found["8b-bf16-traced" if "8B" in which else row]["verdict"], "failed: not finite")
                self.assertEqual(printed.splitlines()[-1], f"next: first.sh --variant wrong-numbers --row {row}")

    def test_a_loss_that_is_no_number_is_called_so(self):
        self.tool("programs/titan_train", TRAIN.replace('\\"loss\\": 7.5', '\\"loss\\": null'))
        self.assertRegex(self.driver("--only", "single"), r"single +[\d.]+ s  failed: a loss that is not a number\n")

    def test_a_comparison_that_fails_says_its_error_and_another_package_of_the_folders_name_is_none(self):
        package = self.folder / "packages" / "scripts" / "__init__.py"
        package.parent.mkdir(parents=True)
        package.write_text("")
        words = ("--variant", "wrong-numbers", "--only", "step 1 on cuda,step 1 on cpu,tensors that differ")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": str(package.parents[1])}):
            self.assertIn("ok: 1 tensors in both", self.driver(*words, code=0))
        (self.programs / "dump").write_text("not a dump")
        self.assertRegex(self.driver(*words), r"tensors that differ +[\d.]+ s  exit code 1: [\w.]*Error\b")

    def test_a_reader_that_has_gone_ends_no_row(self):
        command = f"bash '{ROOT}/scripts/gpu/first.sh' --packed '{self.programs}' --out '{self.out}' --only single,fused,tp2 2>&1 | head -n 1"
        subprocess.run(["bash", "-c", command], env=os.environ | self.variables(), capture_output=True, timeout=300)
        self.assertEqual(list(self.results()), ["single", "fused", "tp2"])
        self.assertIn("| tp2 |", (self.out / "page.md").read_text())

    def test_a_locale_without_our_letters_costs_nothing(self):
        locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        with unittest.mock.patch.dict(os.environ, locale):
            self.assertIn("1b-bf16-traced", self.script("--only", "1b-bf16-traced"))
            self.assertIn("(10,240 – 10,240)", (self.out / "page.md").read_text())
        arguments = argparse.Namespace(programs=self.programs, device="cuda", log=None, results=None, seconds=9, only="", script="first")
        programs.Session(arguments, 0).write(self.folder / "page", "caf\udce9 –", "w")
        self.assertEqual((self.folder / "page").read_text(encoding="utf-8"), "caf? –")

    def test_what_a_row_leaves_behind_in_sessions_of_its_own_is_gone_before_the_next(self):
        self.behave('setsid sh -c "sleep 60; : \'$here\'" & sleep 0.3\n')
        self.script("--only", "3b-bf16-fused")
        left = subprocess.run(["pgrep", "-f", str(self.programs)], capture_output=True, text=True)
        self.assertEqual(left.stdout, "")

    def test_what_records_the_clocks_may_write_what_it_holds(self):
        for traps, wanted in (("trap 'echo the last second; exit' INT", "the last second\n"), ("trap '' INT TERM", "")):
            self.tool("bin/nvidia-smi", f"#!/bin/sh\n{traps}\nwhile :; do sleep 0.1; done\n")
            with unittest.mock.patch.dict(os.environ, self.variables()):
                self.out.mkdir(exist_ok=True)
                recorder = card.start_recorder(self.out)
                while subprocess.run(["pgrep", "-P", str(recorder.pid)], capture_output=True).returncode:
                    pass
                card.end_recorder(recorder)
            self.assertEqual((self.out / "dmon.txt").read_text(), wanted)
            self.assertIsNotNone(recorder.returncode)

    def test_killed_from_outside_what_ran_is_there(self):
        for row, kept in (("*compile.enable*", ALWAYS[:3]), ("*flavor=3B*", [*ALWAYS, *ON_H100])):
            with self.subTest(row):
                shutil.rmtree(self.out, ignore_errors=True)
                self.behave(f'case "$*" in plan*) ;; {row}) echo first words; sleep {2 * programs.LOG_SECONDS}; kill -9 $PPID; sleep 600 ;; esac\n')
                self.script(code=-signal.SIGKILL)
                self.assertEqual(list(self.results())[: len(kept)], kept)
                self.assertIn(f"| {kept[-1]} |", (self.out / "page.md").read_text())
                last = [line for line in (self.out / "log.txt").read_text().splitlines() if line.startswith("$ ")][-1]
                self.assertIn("--compile.enable", last)
                self.assertIn("\nfirst words\n", (self.out / "log.txt").read_text())

    def test_asked_to_end_it_prints_the_table_of_what_ran_and_what_the_running_row_said(self):
        self.behave('case "$*" in *compile.enable*) echo before the hang; kill -TERM $PPID; sleep 600 ;; esac\n')
        printed = self.script(code=1)
        self.assertIn("Ended from outside", printed)
        self.assertIn("single  ", printed)
        self.assertRegex(printed, r"fused +[\d.]+ s  ended from outside")
        self.assertIn("before the hang", (self.out / "log.txt").read_text())
        self.assertIn("    before the hang\n    ended from outside\n", (self.out / "page.md").read_text())
        self.assertEqual(list((self.folder / "tmp").glob("titan-gpu-*")), [])


class Sentences(Machine):
    """One each about what stands in the way; the rows that can run do."""

    def said(self, line: str, sentence: str) -> None:
        self.card(line)
        printed = self.driver("--only", "single", code=0)
        self.assertIn(sentence, printed)
        self.assertEqual(self.results()["single"]["verdict"], "ok")

    def test_of_a_card_that_is_not_known(self):
        self.said("NVIDIA X9, 580.95, 81040 MiB, 3 MiB", "NVIDIA X9 is none of H200, H100 SXM, B200, A100 SXM 80 GB: ")

    def test_of_a_driver_that_is_too_old(self):
        self.said("NVIDIA H100 80GB HBM3, 535.129, 81040 MiB, 3 MiB", "The driver 535.129 is too old for CUDA 13 (it takes 580 or newer)")

    def test_of_another_process_on_the_card_whose_memory_is_not_planned_with(self):
        self.said("NVIDIA H200, 580.95, 143771 MiB, 70000 MiB", "Another process has 70,000 MiB of the card")
        self.driver("--only", ",".join(ON_H100), code=0)
        self.assertEqual(self.results()["8b_recomputed-bf16-fused"]["verdict"], "left out: needs 74.0 GiB of 72.0")
        self.assertTrue(self.trained())
        self.assertEqual([call for call in self.trained() if "n_layers" in call and "--training.loss_chunks=4" not in call], [])

    def test_of_a_slower_card_of_a_known_name_and_of_one_that_the_programs_have_no_code_for(self):
        kinds = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA A100-SXM4-80GB": "a100-80", "NVIDIA B200": "b200"}
        for name, kind in kinds.items():
            one = card.Card(name, mib=80000)
            self.assertEqual((one.kind, list(one.obstacles())), (kind, []))
        for name in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA A100-SXM4-40GB"):
            one = card.Card(name, mib=80000)
            self.assertEqual((one.kind, [said.split(": ")[0] for said in one.obstacles()]), ("h100-sxm", [f"{name} is none of {card.NAMES}"]))
        self.assertIn("no code for compute capability 10.x", " ".join(card.Card("NVIDIA B200", mib=180000, generation=10).obstacles()))
        built = set(re.findall(r"(\d)\da?-real", (ROOT / "cmake" / "Cuda.cmake").read_text()))
        self.assertEqual(built, {str(number) for number in card.GENERATIONS})

    def test_of_a_driver_without_nvidia_smi_whose_card_another_process_uses(self):
        (self.folder / "bin" / "nvidia-smi").unlink()
        (self.folder / "cuda.c").write_text(
            r"""#include <stdio.h>
            int cuInit(int flags) { return 0; }
            int cuDriverGetVersion(int* version) { return *version = 12020, 0; }
            int cuDeviceGetName(char* name, int size, int device) { return sprintf(name, "NVIDIA H200"), 0; }
            int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 143771ul << 20, 0; }
            int cuDeviceGetAttribute(int* value, int which, int device) { return *value = 9, 0; }
            int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = context, 0; }
            int cuCtxSetCurrent(void* context) { return !context; }
            int cuMemGetInfo_v2(size_t* free, size_t* all) { return *all = 143771ul << 20, *free = 73271ul << 20, 0; }
            """
        )
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", self.folder / "libcuda.so.1", self.folder / "cuda.c"], check=True)
        with unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": str(self.folder)}):
            printed = self.driver("--only", "single", code=0)
        self.assertIn("The driver is too old for CUDA 13", printed)
        self.assertIn("Another process has 70,000 MiB of the card", printed)
        self.assertNotIn("is none of", printed)

    def test_of_another_torch(self):
        self.torch("2.9.1")
        self.said(H100, "Python has torch 2.9.1 where 2.11.0 is needed")

    def test_of_a_second_start(self):
        with open(self.folder / "tmp" / "titan-gpu.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.script(code=75)
        self.assertFalse(self.out.exists())

    def test_of_a_second_start_with_another_folder_for_temporary_files(self):
        (self.folder / "card").write_text("")
        with unittest.mock.patch.object(card, "LOCKS", [str(self.folder / "card")]), card.only_one():
            with unittest.mock.patch.object(tempfile, "tempdir", str(self.folder / "tmp")):
                self.assertIsNone(card.only_one())

    def test_of_no_second_start_where_there_can_be_no_lock(self):
        (self.folder / "tmp" / "titan-gpu.lock").mkdir()
        self.driver("--only", "single", code=0)

    def test_of_a_row_that_there_is_not(self):
        printed = self.driver("--only", "nosuch")
        self.assertIn("There was no row nosuch.", printed)
        self.assertNotIn("next: ", printed)

    def test_of_a_package_whose_page_has_no_folder(self):
        shutil.copytree(ROOT / "scripts" / "gpu", self.folder / "package" / "scripts" / "gpu")
        command = ["bash", self.folder / "package/scripts/gpu/check.sh", "--packed", self.programs, "--only", "single"]
        done = subprocess.run(command, cwd=self.folder, env=os.environ | self.variables(), capture_output=True, text=True, timeout=300)
        self.assertNotIn("could not be written", done.stderr)
        self.assertEqual(len(list(self.folder.glob("gpu-check-*.md"))), 1)

    def test_of_a_machine_without_a_card(self):
        (self.folder / "bin" / "nvidia-smi").unlink()
        self.script(code=69)


def traced(name: str, likely: dict[str, float], measured: dict[str, float]) -> programs.Outcome:
    """A row of speed with parts of a step, in ms; good is a tenth less than likely."""
    plan = {"seconds": {key: part / 1e3 for key, part in likely.items()}, "good": {"seconds": {key: part / 1.1e3 for key, part in likely.items()}}}
    return programs.Outcome(name, "titan_train", "ok", numbers={"planned": plan, "milliseconds_by_kind": measured})


class Expectation(unittest.TestCase):
    def said(self, likely: dict[str, float], measured: dict[str, float]) -> list[str]:
        return [line for line in bench.expectation(traced("8b-bf16-traced", likely, measured)) if line.startswith("* ")]

    def test_each_part_that_leaves_its_range_is_named_with_what_to_look_at(self):
        likely = {"products": 300, "float8 products": 200, "attention": 100, "swiglu": 60, "optimizer": 40, "waiting for loss": 0}
        measured = {"matrix products": 490, "attention": 95, "elementwise and reductions": 58, "optimizer": 41, "own loops, waits and gaps": 6}
        self.assertEqual(self.said(likely, measured), [])
        for kind, part, where in (("attention", "attention", "slow-attention"), ("copies", "memory", "all-well"), ("unknown", "gaps", "sync-check")):
            more = measured | {kind: measured.get(kind, 0) + 40}
            self.assertRegex("\n".join(self.said(likely, more)), rf"^\* {part}: [\d.]+ ms more than expected, [\d.]+ % of the step; .*{where}")
            self.assertEqual(len(self.said(likely, more)), 1)

    def test_a_part_that_is_faster_is_not_sent_after_what_makes_it_slow(self):
        (line,) = self.said({"attention": 100}, {"attention": 60})
        self.assertRegex(line, r"^\* attention: 30.9 ms less than expected, 51.5 % of the step; look at what of it the program leaves out")
        self.assertNotIn("--variant", line)


class NextStep(unittest.TestCase):
    def expect(self, wanted: str, *runs: programs.Outcome) -> None:
        arguments = argparse.Namespace(programs=ROOT, device="cuda", log=None, results=None, out=None, seconds=60, only="", script="first")
        visit = first.Visit(arguments, None, 0)
        visit.session.outcomes = {run.name: run for run in runs}
        self.assertEqual(visit.next_step(), wanted)

    def test_is_the_part_that_loses_most_time(self):
        likely = {"products": 250, "attention": 50, "swiglu": 20}
        bf16 = traced("8b-bf16-traced", likely, {"matrix products": 258.6, "attention": 200, "copies": 20})
        self.expect("--variant slow-attention", bf16)
        self.expect("--variant slow-products", bf16, traced("8b-float8-traced", likely, {"matrix products": 500, "attention": 50, "copies": 20}))
        self.expect("--variant all-well", traced("8b-bf16-traced", likely, {"matrix products": 200, "attention": 50, "copies": 20}))
        self.expect("--variant all-well")

    def test_is_of_the_first_row_that_went_wrong(self):
        def run(name, verdict, printed=""):
            return programs.Outcome(name, "titan_train", verdict, printed=printed)

        well, late = run("single", "ok"), traced("8b-bf16-traced", {"attention": 50}, {"attention": 200})
        self.expect("--variant wrong-numbers --row fused", well, run("fused", "failed: other losses"), late)
        self.expect("--variant wrong-numbers --row fused", well, run("fused", "exit code 139"))
        self.expect("--variant crash --row bf16-fused", well, late, run("bf16-fused", "not over after 20 s"))
        self.expect("--variant crash --row 8b-float8-traced", well, run("8b-float8-traced", "exit code 70"), run("bf16", "failed: other losses"))
        self.expect("--variant slow-attention", well, late, run("fsdp2", "cut off after 11 s"), run("tp2", "left out: no time"))
        self.expect("none of the variants; first mend what keeps the row single from running", run("single", "exit code 127"))
        self.expect("--variant crash --row single", run("single", "exit code 139"), late)
        self.expect("--variant slow-attention", run("single", "not over after 50 s"), late)
        self.expect("--variant slow-attention", well, late, run("fsdp2", "exit code 70"), run("tp2", "not over after 40 s"))
        self.expect("--variant crash --row fsdp2", well, run("fsdp2", "exit code 70"))
        self.expect("--variant wrong-numbers --row float8", well, run("8b-float8-plain", "failed: not finite"), late)
        cases = "[ RUN      ] OnGpu/Kernel.Writes/adam_1\n[  FAILED  ] OnGpu/Kernel.Writes/adam_1, where GetParam() = adam_1 (3 ms)\n"
        tests = run("kernels_test", "exit code 1", f"{cases}[  FAILED  ] 1 test, listed below:\n[  FAILED  ] OnGpu/Kernel.Writes/adam_1, where\n")
        self.expect("--variant wrong-numbers --cases OnGpu/Kernel.Writes/adam_1", well, late, tests)
        self.expect("--variant wrong-numbers --row bf16 --cases OnGpu/Kernel.Writes/adam_1", well, run("bf16", "failed: a loss of 0"), tests)
        hung = run("kernels_test", "not over after 25 s", "[ RUN      ] OnGpu/A.B/c\n[       OK ] OnGpu/A.B/c\n[ RUN      ] OnGpu/A.B/d\n")
        self.expect("--variant wrong-numbers --cases OnGpu/A.B/d", well, hung)


if __name__ == "__main__":
    unittest.main()
