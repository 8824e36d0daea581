"""A run handed over to Weights & Biases, for which a module stands in that notes what it is told."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import unittest

from program import ROOT, BehaviourTest

STAND_IN = """
import json, os
class Run:
    def log(self, values, step):
        with open(os.environ["LOGGED"], "a") as file:
            file.write(json.dumps([step, values]) + "\\n")
    def finish(self):
        self.log({"finished": 1}, -1)
def init(**given):
    Run().log(given, 0)
    return Run()
"""


class WeightsAndBiases(BehaviourTest):
    def hand_over(self, folder: pathlib.Path, *words, **environment) -> list[tuple[int, dict]]:
        module = self.folder / "modules" / "wandb.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(STAND_IN)
        logged = self.folder / "logged"
        logged.unlink(missing_ok=True)
        variables = {**os.environ, "PYTHONPATH": str(module.parent), "LOGGED": str(logged), **environment}
        script = ROOT / "scripts" / "to_wandb.py"
        subprocess.run([sys.executable, script, folder, *words], check=True, env=variables, timeout=60)
        return [tuple(json.loads(line)) for line in logged.read_text().splitlines()]

    def test_the_script_logs_every_step_once_and_honours_wandbs_variables(self):
        run = self.train(steps=4)
        lines = run.metrics()
        path = run.folder / "metrics.jsonl"
        # A run that went back to step 2, and a line that a full disk cut.
        repeated = [{**line, "loss": line["loss"] + 1} for line in lines[2:]]
        path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in repeated) + '{"step": 5, "lo')
        begin, *steps, end = self.hand_over(run.folder, WANDB_RUN_TAGS="a,b", WANDB_PROJECT="mine")
        self.assertEqual((begin[1]["project"], begin[1]["tags"]), ("mine", ["a", "b"]))
        self.assertEqual([step for step, _ in steps], [1, 2, 3, 4])
        losses = [values["loss_metrics/global_avg_loss"] for _, values in steps]
        self.assertEqual(losses, [line["loss"] for line in [*lines[:2], *repeated]])
        self.assertEqual(end[0], -1)

    def test_the_script_follows_a_run_until_it_falls_silent(self):
        run = self.train(steps=3)
        followed = self.hand_over(run.folder, "--follow", "--patience=0.5")
        self.assertEqual([step for step, _ in followed], [0, 1, 2, 3, -1])

    def test_statistics_of_the_model_have_a_name_each(self):
        folder = self.folder / "run"
        folder.mkdir()
        line = {"step": 1, "loss": 2.0, "statistics": {"balance": 0.5, "load": [1, "nan"]}}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        _, (step, values), _ = self.hand_over(folder)
        self.assertEqual((step, values["statistics/balance"], values["statistics/load[0]"]), (1, 0.5, 1.0))
        self.assertNotEqual(values["statistics/load[1]"], values["statistics/load[1]"])

    def test_a_folder_without_a_run_is_named(self):
        script = ROOT / "scripts" / "to_wandb.py"
        run = subprocess.run([sys.executable, script, self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 65)
        self.assertIn(f"{self.folder / 'metrics.jsonl'} is not there", run.stderr)


if __name__ == "__main__":
    unittest.main()
