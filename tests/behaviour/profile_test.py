"""Traces of steps: where they are, what is in them, and what the program says of them; snapshots of memory on a CPU."""

from __future__ import annotations

import json
import pathlib
import re
import unittest

from program import OK, BehaviourTest, Run
from rank_processes import RanksTest

TRACES = ["--profiling.enable_profiling", "--profiling.profile_freq=5"]


def iterations(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Traces(BehaviourTest):
    def events(self, run: Run, iteration: int) -> list[dict]:
        text = (run.folder / "profile_traces" / f"iteration_{iteration}" / "rank0_trace.json").read_text()
        return json.loads(text)["traceEvents"]

    def test_the_last_step_of_every_period_is_traced_with_every_unit_and_phase(self):
        run = self.train(*TRACES, "--job.generation=2026", steps=12)
        folder = run.folder / "profile_traces"
        self.assertEqual(run.errors, "", "nothing about GPUs that are not there")
        self.assertIn(f"Profiling active. Traces will be saved at {folder}", run.messages())
        self.assertEqual(iterations(folder), ["iteration_10", "iteration_5"])
        for step in (5, 10):
            self.assertIn(f"Dumping profiler traces at step {step}", run.messages())
            names = {event["name"] for event in self.events(run, step) if event.get("ph") == "X"}
            wanted = {f"ProfilerStep#{step}", "gradient norm", "optimizer"}
            for unit in ("tok_embeddings", "layers.0", "layers.1"):
                wanted |= {f"forward {unit}", f"backward {unit}"}
            self.assertLessEqual(wanted, names)
            self.assertNotIn(f"ProfilerStep#{step - 1}", names)
        self.assertEqual(sum(line.startswith("Finished dumping profiler traces in ") for line in run.messages()), 2)

    def test_tracing_changes_no_number(self):
        words = ["--debug.seed=4"]
        plain = self.train(*words, steps=6)
        traced = self.train(*words, *TRACES, steps=6)
        for key in ("loss", "grad_norm"):
            self.assertEqual(plain.training(key), traced.training(key))

    def test_the_cycle_goes_by_the_step_of_the_run_and_not_of_the_process(self):
        words = [*TRACES, "--checkpoint.enable", "--checkpoint.interval=100", "--checkpoint.last_save_model_only=false"]
        first = self.train(*words, steps=3)
        self.assertFalse((first.folder / "profile_traces").exists())
        self.train(*words, steps=7, folder=first.folder)
        self.assertEqual(iterations(first.folder / "profile_traces"), ["iteration_5"])

    def test_a_summary_shows_parts_operations_and_gaps(self):
        run = self.train(*TRACES, steps=5)
        trace = run.folder / "profile_traces" / "iteration_5" / "rank0_trace.json"
        summary = self.titan("profile", "summarize", trace, "--top", 5)
        self.expect(summary, OK)
        for words in (r"^1 step, [\d.]+ ms; the main thread is in operations", r"^ +backward layers\.\* +2 ", r"^ +aten::"):
            self.assertRegex(summary.output, re.compile(words, re.MULTILINE))
        self.assertIn("Main thread in no operation", summary.output)
        self.assertLessEqual(max(map(len, summary.output.splitlines())), 120)

    def test_a_folder_in_the_way_costs_the_traces_and_not_the_run(self):
        folder = self.fresh_folder()
        folder.mkdir()
        (folder / "profile_traces").write_text("")
        run = self.train(*TRACES, steps=10, folder=folder)
        warnings = [line for line in run.messages("WARNING") if "traces" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn(str(folder / "profile_traces"), warnings[0])
        self.assertEqual(run.training("step")[-1], 10)


class TracesOfRanks(RanksTest):
    def test_every_rank_writes_its_own(self):
        run = self.launch_training(2, "--training.steps=5", *TRACES, "--parallelism.data_parallel_shard_degree=-1")
        self.assertEqual(run.end(), OK, run.text())
        folder = self.folder / "run" / "profile_traces" / "iteration_5"
        self.assertEqual(iterations(folder), ["rank0_trace.json", "rank1_trace.json"])
        for path in folder.iterdir():
            names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
            self.assertLessEqual({"gather", "reduce", "optimizer", "ProfilerStep#5"}, names)


class Snapshots(BehaviourTest):
    def test_a_run_on_a_cpu_says_that_it_writes_none(self):
        run = self.train("--profiling.enable_memory_snapshot", steps=2)
        (warning,) = [line for line in run.messages("WARNING") if "snapshot" in line]
        self.assertIn("this run is on a CPU: none are written", warning)
        self.assertFalse((run.folder / "memory_snapshot").exists())


if __name__ == "__main__":
    unittest.main()
