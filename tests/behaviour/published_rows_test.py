"""The rows of torchtitan's published tables: each has a config that is planned for its GPUs, and a dry run; and the scripts
that reproduce rows and compare losses."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest
import xml.etree.ElementTree

from program import FULL, OK, BehaviourTest
from titan import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import simulated  # noqa: E402

CONFIGS = sorted((ROOT / "configs" / "bench").glob("*.toml"))
LAYOUTS = ("A1", "A4", "B2", "S2f", "T1c", "T2d", "T4b", "T5b", "T6d")  # one row of each
HEADER = re.compile(
    r"# Row (?P<row>\w+): .* on (?P<gpus>\d+) [AH]100 of .*\n"
    r"# Published: (?P<tps>[\d.]+) tokens/s per GPU(, (?P<mfu>[\d.]+) % MFU)?(, (?P<gib>[\d.]+) GiB)? \(.*\)\.\n"
)


def header(path: pathlib.Path) -> re.Match:
    found = HEADER.match(path.read_text())
    assert found, path
    return found


class ScriptTest(BehaviourTest):
    def script(self, name: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [ROOT / "scripts" / name, *map(str, words)],
            env={**os.environ, "TITAN_TRAIN": str(self.program), **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )


class PublishedRows(ScriptTest):
    def test_every_row_has_a_config(self):
        self.assertEqual(len(CONFIGS), 41)
        self.assertLessEqual(set(LAYOUTS), {path.stem for path in CONFIGS})

    def test_every_config_divides_the_gpus_of_its_row_and_is_planned_for_them(self):
        for path in CONFIGS:
            with self.subTest(path.stem):
                row = header(path)
                self.assertEqual(row["row"], path.stem)
                config = tomllib.loads(path.read_text())
                degrees = config["parallelism"]
                product = degrees["data_parallel_shard_degree"]
                for kind in ("context", "tensor", "pipeline"):
                    product *= degrees.get(f"{kind}_parallel_degree", 1)
                self.assertEqual(product, int(row["gpus"]))
                plan = self.titan("plan", path, "--world", row["gpus"])
                self.expect(plan, OK)
                self.assertIn("together", plan.output)

    def test_every_row_has_a_dry_run(self):
        rows = [path for path in CONFIGS if FULL or path.stem in LAYOUTS]
        run = self.script("bench/reproduce.sh", "--dry-run", *(path.stem for path in rows))
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        self.assertEqual(run.stderr.count("Training completed"), len(rows))
        for path in rows:
            self.assertIn(f"dry run of {path.stem}: rank 0 of {header(path)['gpus']}, ", run.stderr)

    def test_the_numbers_are_those_of_the_published_tables(self):
        table = ROOT.parent / "shared" / "spec" / "targets.md"
        if not table.exists():
            self.skipTest(f"{table} does not exist")
        rows = {}
        for line in table.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if re.fullmatch(r"[TAB]\d[a-d]?", cells[0]):
                rows[cells[0]] = (cells[2].split()[0], *re.match(r"([\d.]+)(?: \(([\d.]+) %)?", cells[-2]).groups(), cells[-1])
        self.assertGreaterEqual(len(rows), 29)
        for name, (gpus, tps, mfu, gib) in rows.items():
            with self.subTest(name):
                row = header(ROOT / "configs" / "bench" / f"{name}.toml")
                self.assertEqual((row["gpus"], float(row["tps"])), (gpus, float(tps)))
                if mfu:
                    self.assertEqual(float(row["mfu"]), float(mfu))
                if gib:
                    self.assertEqual(float(row["gib"]), float(gib))

    def test_a_row_is_measured_at_step_90_and_its_line_has_the_published_number(self):
        fake = self.write("titan_train", '''#!/bin/sh
if [ "$1" = plan ]; then
  [ "$3 $4 $5 $6" = "--world 8 --gpu h100-95" ] || exit 9
  printf '{\\n "reserved_bytes": 64424509440,\\n "tokens_per_second_per_gpu": 5000.4\\n}\\n'
  exit
fi
[ "$1 $2 $3" = "launch -n 8" ] || exit 9
folder=${5#--job.dump_folder=}
mkdir -p "$folder"
for step in 80 90 100; do
  echo '{"step":'$step',"loss":7.5,"tps":'$step'00.25,"ranks":{"least_memory_bytes":1,"most_memory_bytes":75161927680}}'
done >"$folder/metrics.jsonl"
''')
        fake.chmod(0o755)
        self.program = fake
        page = self.folder / "page.md"
        run = self.script("bench/reproduce.sh", "T1b", f"--out={page}", f"--output-folder={self.folder}/runs", "--with=launch")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue((self.folder / "runs" / "T1b" / "metrics.jsonl").exists())
        self.assertRegex(page.read_text(), r"\| T1b \| 6667 tokens/s per GPU, 77 GiB \(.*\) \| 5000 tokens/s per GPU, 60\.0 GiB \| 9000 tokens/s per GPU, 70\.0 GiB \|")

    def test_launchers_are_given_the_nodes_and_ranks_of_a_row(self):
        said = self.folder / "said"
        for launcher, wanted in (
            ("srun", "-K --nodes 16 --ntasks 128 --ntasks-per-node 8 "),
            ("mpirun", "-n 128 --map-by ppr:8:node "),
            ("torchrun", "--no-python --nnodes 16 --nproc-per-node 8 --rdzv-backend c10d "),
        ):
            stand_in = self.write(launcher, f'#!/bin/sh\necho "" "$@" >{said}\nexit 9\n')
            stand_in.chmod(0o755)
            run = self.script("bench/reproduce.sh", "T3a", f"--with={launcher}", "--training.seed=3",
                              PATH=f"{self.folder}:{os.environ['PATH']}", TORCHRUN_OPTIONS="--rdzv-backend c10d")  # fmt: skip
            self.assertEqual(run.returncode, 9, run.stderr)
            self.assertTrue(said.read_text().startswith(" " + wanted), said.read_text())
            words = f"configs/bench/T3a.toml --job.dump_folder={ROOT}/outputs/bench/T3a --training.seed=3\n"
            self.assertTrue(said.read_text().endswith(words), said.read_text())

    def test_what_cannot_be_reproduced_is_refused(self):
        for words, said in (
            (["T9x"], "T9x is no row; --list shows them"),
            ([], "name the rows to reproduce"),
            (["T1a", "--with=kubectl"], "--with kubectl: launch, torchrun, mpirun or srun"),
            (["T1a", "--gpus-per-node=none"], "--gpus-per-node none: a number of GPUs is wanted"),
            (["T3a", "--with=launch"], "128 GPUs are 16 nodes: --with torchrun, mpirun or srun"),
        ):
            run = self.script("bench/reproduce.sh", *words)
            self.assertEqual((run.returncode, said in run.stderr), (64, True), run.stderr)


class LossCompare(ScriptTest):
    def compare(self, *words: str) -> subprocess.CompletedProcess:
        return self.script("loss_compare.sh", ".", ".", "--steps=3", f"--output-folder={self.folder}/compared", *words)

    def test_equal_runs_are_equal_and_different_ones_differ_from_a_step_on(self):
        kept = self.folder / "losses"
        same = self.compare("--assert-equal", f"--export-result={kept}")
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertIn("3 steps: largest difference 0.00e+00, mean 0.00e+00; all losses are equal", same.stdout)
        self.assertIn("<html", (self.folder / "compared" / "compared.html").read_text())
        other = self.compare("--assert-equal", f"--import-result={kept}", "--test-options=--optimizer.lr=0.01")
        self.assertEqual(other.returncode, 1, other.stderr)
        self.assertIn("they differ from step 2 on", other.stdout)
        self.assertEqual(self.compare(f"--import-result={kept}", "--test-options=--optimizer.lr=0.01").returncode, 0)

    def test_torchtitans_other_options_are_taken_and_curves_have_their_own_help(self):
        run = self.compare("--baseline-train-file=train", "--job-dump-folder", "outputs")
        self.assertEqual(run.returncode, 0, run.stderr)
        for option in ("--baseline-train-file", "--job-dump-folder"):
            self.assertIn(f"{option} has no effect: the program is titan_train", run.stderr)
        self.assertIn("scripts/bench/loss_curves.sh [OPTION", self.script("bench/loss_curves.sh", "--help").stdout)

    def test_what_cannot_be_compared_is_refused(self):
        for words, said in (
            ([".", "no-such-commit"], "no-such-commit is no commit"),
            (["."], "name a baseline and a test"),
            ([".", ".", "--steps=many"], "--steps many: a number of steps is wanted"),
            ([".", ".", "--import-result=/nowhere"], "--import-result: /nowhere does not exist"),
            ([".", ".", "--baseline-options=--training.foo=1"], "the baseline run failed"),
        ):
            run = self.script("loss_compare.sh", *words, f"--output-folder={self.folder}/compared")
            self.assertEqual((run.returncode, said in run.stderr), (64, True), run.stderr)


class SimulatedTest(ScriptTest):
    def plan(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.program, "plan", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120
        )

    def test_the_pages_of_published_rows_and_of_one_h200_are_what_their_script_writes(self) -> None:
        done = subprocess.run(
            [ROOT / "scripts/bench/simulated.py", "rows", "expected", "--check"],
            env={**os.environ, "TITAN_BINARY": str(self.program)},
            capture_output=True,
            text=True,
            timeout=1200,  # two minutes of two cores, which other tests use too
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_sentences_of_simulated_pages_have_no_results_of_their_own(self) -> None:
        reasons = [other[-1] for other in simulated.OTHERS]
        for text in (*(line for _, line in simulated.MISSES), simulated.OTHER_LINES, *reasons):
            self.assertNotRegex(re.sub(r"\{[^}]*\}", "", text), r"\d %|\d\.\d|\d-fold")

    def test_sentences_take_the_rate_of_the_attention_kernel_that_they_name_and_the_share_without_casts(self) -> None:
        hardware = tomllib.loads((ROOT / "src/estimate/hardware.toml").read_text())

        def plan_on(path: pathlib.Path) -> dict:
            (gpu,) = tomllib.loads(path.read_text()).values()
            self.assertEqual(gpu["likely"], hardware["h100-95"]["likely"])
            self.assertEqual(gpu["memory_gb_s"], hardware["h200"]["memory_gb_s"])
            return {"tokens_per_second_per_gpu": gpu["attention_tflops"]}

        likely = {"step_seconds": 2.0, "tokens_per_second_per_gpu": 90.0, "seconds": {"float8 casts": 0.2}}
        good = {"step_seconds": 1.0, "tokens_per_second_per_gpu": 180.0, "seconds": {"float8 casts": 0.05}}
        found = simulated.reason_numbers(100, likely | {"good": good}, plan_on)
        wanted = {"flash": hardware["h200"]["flash_tflops"] / 100, "attention": hardware["h200"]["attention_tflops"] / 100,
                  "likely_casts": 10, "likely_rest": 1.0, "good_casts": 5, "good_rest": 1.8 / 0.95}  # fmt: skip
        self.assertEqual({key: round(value, 9) for key, value in found.items()}, {key: round(value, 9) for key, value in wanted.items()})
        torchtitan = next(other[-1] for other in simulated.OTHERS if other[0].startswith("torchtitan"))
        self.assertRegex(torchtitan, r"(?s)used FlashAttention 2\. With that kernel's rate.* the ratio is \{flash:")

    def test_each_row_that_is_far_off_is_in_a_line_of_what_the_misses_have_in_common(self) -> None:
        page = (ROOT / "docs/benchmarks/simulated.md").read_text()
        rows = re.findall(r"^\| (\w+)(\*?) \| (\d+) \| (\d+) \| [\d.]+ \|", page.split("\nWhat the misses")[0], re.M)
        ratios = {name: int(ours) / int(published) for name, fitted, published, ours in rows if not fitted}
        misses = {name for name, ratio in ratios.items() if abs(ratio - 1) > simulated.NEAR}
        lines = page.split("\nWhat the misses have in common:\n")[1].split("\n* **Order**")[0]
        self.assertLessEqual(misses, set(re.findall(r"\b[TABS]\d\w?\b", lines)))
        said = f"{len(ratios) - len(misses)} of {len(ratios)} predicted rows are within 15 %"
        self.assertIn(f"\n{said} of the published throughput", page)
        with self.assertRaises(SystemExit) as ended:
            simulated.misses_text({row: 1.2 if row.name == "A2" else 1.0 for row in simulated.all_rows()}, {})
        self.assertRegex(str(ended.exception), r"more than 15 % off: A2; MISSES in .* has B1, S1f, .*: change its lines")

    def test_readme_has_the_number_of_predicted_rows_that_the_page_has(self) -> None:
        page = (ROOT / "docs/benchmarks/simulated.md").read_text()
        near, rows, percent = re.search(r"^(\d+) of (\d+) predicted rows are within (\d+) %", page, re.M).groups()
        readme = (ROOT / "README.md").read_text()
        self.assertEqual(re.findall(r"(\d+) of (\d+) published rows predicted within (\d+) %", readme), [(near, rows, percent)])

    def test_presets_say_what_the_plan_says(self) -> None:
        said = re.compile(r"^# (Planned: .* \(titan_train plan --world (\d+) --gpu ([\w-]+)\)\.)$", re.M)
        presets = [path for path in sorted((ROOT / "configs").rglob("llama*.toml")) if "bench" not in path.parts]
        self.assertGreaterEqual(len(presets), 20)
        for path in presets:
            with self.subTest(preset=path.name):
                line, world, gpu = said.search(path.read_text()).groups()
                done = self.plan(path, "--world", world, "--gpu", gpu)
                self.assertIn("\nfits, with ", done.stdout, done.stderr)
                memory = re.search(r"needs most, ([\d.]+) GiB", done.stdout)[1]
                speed = re.search(r": (\d+(?: to \d+)?) tokens/s per GPU", done.stdout)[1]
                self.assertEqual(
                    line,
                    f"Planned: {memory} GiB of each GPU, {speed} tokens/s per GPU "
                    f"(titan_train plan --world {world} --gpu {gpu}).",
                )

    def test_what_does_not_fit_is_said_with_the_smallest_changes_that_would(self) -> None:
        for example, world, gpu, change, host in (
            ("llama3_8b_one_host", 8, "h100-sxm", "training.local_batch_size = 3", ""),
            ("llama3_70b_32_gpus", 32, "h100-sxm", 'optimizer.state_dtype = "bfloat16"', ""),
            ("llama3_70b_32_gpus", 32, "a100-80", "optimizer.offload = true", r" and 33 GiB of host memory per GPU"),
        ):
            with self.subTest(change=change):
                done = self.plan(f"configs/examples/{example}.toml", "--world", world, "--gpu", gpu)
                said = rf"\ndoes not fit, by [\d.]+ GiB\n(it would .*\n)*it would fit with {re.escape(change)} \([\d.]+ GiB{host}, \d"
                self.assertRegex(done.stdout, said)

    def test_a_search_finds_layouts_that_fit_and_json_has_the_same_numbers(self) -> None:
        job = ("configs/llama3_8b.toml", "--world", 8, "--gpu", "h100-sxm")
        text = self.plan(*job, "--search").stdout
        found = re.findall(r"^ +(\d+) tokens/s per GPU, +([\d.]+) GiB: shards", text, re.M)
        speeds = [int(speed) for speed, _ in found]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        own, best = map(int, re.search(r": (\d+) to (\d+) tokens/s per GPU", text).groups())
        self.assertGreaterEqual(speeds[0], own)
        self.assertLessEqual(max(float(gib) for _, gib in found), 79.1)
        made = json.loads(self.plan(*job, "--json").stdout)
        self.assertEqual(round(made["tokens_per_second_per_gpu"]), own)
        self.assertEqual(round(made["good"]["tokens_per_second_per_gpu"]), best)
        for step in (made, made["good"]):
            self.assertAlmostEqual(sum(step["seconds"].values()), step["step_seconds"], places=6)
        self.assertIn("products", made["good"]["seconds"])
        self.assertLess(made["good"]["step_seconds"], made["step_seconds"])
        tokens = made["tokens_per_second_per_gpu"] * made["step_seconds"] * 8
        # torchtitan's 6 N + 12 L H D T with N without embeddings, over the data sheet's 989 TFLOP/s.
        flops = tokens * (6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 8192)
        self.assertAlmostEqual(made["flops_per_step"] / flops, 1, places=4)
        self.assertAlmostEqual(made["mfu"], flops / made["step_seconds"] / 8 / 989e12, places=4)
        good = 100 * made["mfu"] * made["step_seconds"] / made["good"]["step_seconds"]
        self.assertIn(f"MFU: {100 * made['mfu']:.1f} to {good:.1f} %", text)
        self.assertEqual(made["pipeline_bubble_seconds"], 0)
        waits = sum(seconds for purpose, seconds in made["seconds"].items() if purpose.startswith("waiting"))
        self.assertAlmostEqual(made["exposed_communication_seconds"], waits, places=9)
        self.assertIn(f"exposed communication: {100 * waits / made['step_seconds']:.1f} %; pipeline bubble: 0.0 %", text)
        self.assertTrue(made["fits"])

    def test_a_traced_step_is_held_against_the_range_part_by_part(self) -> None:
        sys.path.insert(0, str(ROOT / "scripts" / "gpu"))
        import bench
        from programs import Outcome

        words = ("configs/llama3_8b.toml", "--world", 1, "--gpu", "h200", "--training.seq_len=8192", "--json")
        plan = json.loads(self.plan(*words).stdout)
        ms = {part: 1e3 * (plan["seconds"][part] + plan["good"]["seconds"][part]) / 2 for part in ("products", "attention")}
        rest = 1e3 * sum(seconds for part, seconds in plan["seconds"].items() if part not in ms)
        kinds = {"matrix products": ms["products"], "attention": ms["attention"], "optimizer": rest, "gaps": 0.5}

        def said(**changed) -> str:
            found = {"planned": plan, "milliseconds_by_kind": kinds | changed}
            return "\n".join(bench.expectation(Outcome("a row", numbers=found)))

        self.assertEqual(said().count("as expected |"), 4, said())
        self.assertNotIn("look at", said())
        for kind, factor, part in (("matrix products", 1.2, "products"), ("attention", 0.8, "attention"), ("optimizer", 2, "memory")):
            with self.subTest(kind=kind):
                lines = said(**{kind: factor * kinds[kind]})
                self.assertEqual(lines.count("as expected |"), 3, lines)
                word = "more" if factor > 1 else "less"
                self.assertRegex(lines, rf"\* {part}: [\d.]+ ms {word} than expected, [\d.]+ % of the step; look at ")

    def test_a_pipelines_bubble_is_a_line_of_its_own(self) -> None:
        job = ("configs/llama3_8b.toml", "--world", 8, "--gpu", "h100-sxm")
        pipeline = ("--parallelism.pipeline_parallel_degree=4", "--training.local_batch_size=8")
        few = json.loads(self.plan(*job, *pipeline, "--json").stdout)
        many = json.loads(self.plan(*job, *pipeline, "--training.local_batch_size=32", "--json").stdout)
        share = [made["pipeline_bubble_seconds"] / made["step_seconds"] for made in (few, many)]
        self.assertGreater(share[0], 1.5 * share[1])
        self.assertGreater(share[1], 0)

    def test_an_unknown_gpu_and_a_trace(self) -> None:
        unknown = self.plan("configs/llama3_8b.toml", "--gpu", "h300")
        self.assertEqual(unknown.returncode, 64)
        self.assertIn("--gpu h300: no GPU of that name and no file; known are a100-80, b200, ", unknown.stderr)
        trace = self.folder / "step.json"
        done = self.plan("configs/llama3_8b.toml", "--world", 8, "--gpu", "h200", "--trace", trace)
        self.assertEqual(done.returncode, OK, done.stderr)
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertTrue({"compute", "fsdp_gather", "fsdp_scatter"} <= {event["tid"] for event in events})
        self.assertEqual(self.plan("configs/llama3_8b.toml", "--trace", trace).returncode, 64)

    def test_a_picture_has_the_events_of_the_trace_to_scale(self) -> None:
        pipeline = ("--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4")
        for words in ((), pipeline):
            job = ("configs/llama3_2_1b.toml", "--world", 8, "--gpu", "h100-sxm", "--training.global_batch_size=128", *words)
            trace, picture = self.folder / "step.json", self.folder / "step.svg"
            for file in (trace, picture):
                self.assertIn(f"wrote {file}\n", self.plan(*job, "--trace", file).stdout)
            events = json.loads(trace.read_text())["traceEvents"]
            svg = xml.etree.ElementTree.parse(picture).getroot()
            name = "{http://www.w3.org/2000/svg}"
            boxes = [rect for rect in svg.iter(f"{name}rect") if rect.find(f"{name}title") is not None]
            self.assertEqual(len(boxes), len(events))
            rows = {box.get("y"): (event["pid"], event["tid"]) for box, event in zip(boxes, events, strict=True)}
            self.assertEqual(len(rows), len(set(rows.values())))
            self.assertEqual(len(rows), len({(event["pid"], event["tid"]) for event in events}))
            longest = max(range(len(events)), key=lambda i: events[i]["dur"])
            scale = float(boxes[longest].get("width")) / events[longest]["dur"]  # pixels a microsecond
            self.assertAlmostEqual(scale * max(event["ts"] + event["dur"] for event in events), 1100, delta=2)
            for box, event in zip(boxes, events, strict=True):
                self.assertTrue(box.find(f"{name}title").text.startswith(event["name"] + ": "))
                self.assertAlmostEqual(float(box.get("width")), scale * event["dur"], delta=0.3)
            colours = {box.get("fill") for box, event in zip(boxes, events, strict=True) if event["tid"] == "compute"}
            self.assertEqual(len(colours), 5)  # forward, backward, optimizer, waiting, passes that are not drawn
        self.plan("configs/llama3_2_1b.toml", "--world", 8, "--gpu", "h100-sxm", "--trace", picture)
        self.assertEqual(picture.read_text(), (ROOT / "docs/step.svg").read_text())
        refused = self.plan("configs/llama3_2_1b.toml", "--gpu", "h200", "--trace", "step.png")
        self.assertEqual(refused.returncode, 64)
        self.assertIn("--trace: step.png ends with neither .json nor .svg", refused.stderr)


if __name__ == "__main__":
    unittest.main()
