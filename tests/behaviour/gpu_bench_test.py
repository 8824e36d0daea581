"""scripts/gpu/bench.py and the program it drives: rows that the program understands, and a summary that the script does."""

from __future__ import annotations

import argparse
import pathlib
import sys
import unittest

from program import OK, ROOT, BehaviourTest

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import bench  # noqa: E402


class Rows(BehaviourTest):
    def words(self, row: str, device: str, text: pathlib.Path | None = None) -> list[str]:
        given = argparse.Namespace(programs=pathlib.Path(self.program).parent, device=device, machine="", text=text, spent=0)
        made = bench.Bench(given)
        model, precision, mode = row.split("-")
        return made.words_of(made.model(model), precision, mode, str(self.folder / "run"))

    def test_every_row_is_a_config_that_can_be_planned(self):
        text = self.write("text.txt", "Once upon a time.")
        for device in ("cuda", "cpu"):
            for row in bench.ROWS:
                for corpus in (None, text):
                    with self.subTest(device=device, row=row, text=corpus):
                        run = self.titan("plan", *self.words(row, device, corpus))
                        self.expect(run, OK)
                        self.assertIn("memory of this rank", run.output)

    def test_models_are_those_that_the_script_reckons_with(self):
        for row in ("8b-bf16-plain", "3b-bf16-plain", "1b-bf16-plain"):
            model = bench.MODELS[row.split("-")[0]]
            run = self.titan("plan", *self.words(row, "cuda"))
            said = f"dim {model.dim}, {model.layers} layers, {model.heads} heads ({model.kv_heads} for keys and values)"
            self.assertIn(said, run.output)
            self.assertIn(f"hidden {model.hidden}, vocabulary {model.vocabulary}", run.output)

    def test_a_row_runs_to_a_trace_whose_kinds_of_work_the_script_reads(self):
        run = self.titan(*self.words("1b-float8-fused", "cpu"), "--training.threads=1")
        self.expect(run, OK)
        traces = self.folder / "run" / "profile_traces"
        self.assertEqual([path.name for path in traces.iterdir()], [f"iteration_{bench.LAST_STEP}"])
        summary = self.titan("profile", "summarize", traces / f"iteration_{bench.LAST_STEP}" / "rank0_trace.json")
        self.expect(summary, OK)
        kinds = bench.kinds_of(summary.output)
        self.assertIn("matrix products", kinds)
        self.assertIn("own loops, waits and gaps", kinds)
        length = float(summary.output.split(" step, ")[1].split(" ms")[0])
        self.assertAlmostEqual(sum(kinds.values()), length, delta=0.01 * len(kinds))


if __name__ == "__main__":
    unittest.main()
