"""Runs with Muon: what they report, what their checkpoints hold, and what they resume from."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from unittest import mock

import torch
from checkpoint_runs import KILLED, parallel
from program import BAD_CONFIG, DEBUG_CONFIG, FULL, SMALL, Run
from rank_processes import RanksTest
from saved_state import state_of

MUON = ["--optimizer.name=Muon", "--optimizer.muon.dtype=float32"]
SAVES = ["--checkpoint.enable", "--checkpoint.last_save_model_only=false", "--checkpoint.keep_latest_k=0"]
KINDS = ["w1", "w2", "w3", "wk", "wo", "wq", "wv"]


class Muon(RanksTest):
    def launched(self, *words, steps: int, folder=None) -> Run:
        """Two ranks."""
        folder = folder or self.fresh_folder()
        run = self.titan(
            "launch", "-n", 2, DEBUG_CONFIG, *SMALL, f"--training.steps={steps}", *words, f"--job.dump_folder={folder}"
        )
        run.folder = folder
        self.expect(run, 0)
        return run

    def lines(self, run) -> list[dict]:
        all_lines = (json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines())
        return [line for line in all_lines if "loss" in line]

    def test_metrics_show_both_rates_and_the_size_of_updates(self):
        run = self.train(*MUON, "--optimizer.lr=1e-3", "--optimizer.muon.lr=1e-2", "--metrics.log_freq=1", steps=4)
        lines = self.lines(run)
        for line in lines:
            self.assertAlmostEqual(line["statistics"]["muon_lr"], 10 * line["lr"], places=9)
        self.assertIn("muon_lr: ", run.output)
        self.assertIn("Muon steps 14 matrices, AdamW 7 other tensors", run.messages())
        self.assertNotIn("update_rms", run.output)
        for number, line in enumerate(lines):
            rms = {name[11:]: value for name, value in line["statistics"].items() if name.startswith("update_rms.")}
            # An orthogonal matrix has an RMS of 1 / √(longer side); singular values are between 0.6 and 1.25 here. The
            # numbers are those of the step before, which the first has not.
            self.assertEqual(sorted(rms), KINDS if number > 0 else [])
            if number > 0:
                self.assertGreater(rms["wq"], 0.5 / 64**0.5)
                self.assertLess(rms["wq"], 1.3 / 64**0.5)

    def test_the_plan_says_which_matrices_muon_steps_and_on_which_rank(self):
        group = '\n[[optimizer.param_groups]]\nmatch = "attention[.]wk"\nupdate = "adamw"\n'
        config = self.write("grouped.toml", DEBUG_CONFIG.read_text() + group)
        for world, owners in ((1, {"; Muon"}), (2, {"; Muon on rank 0 of matrix", "; Muon on rank 1 of matrix"})):
            run = self.titan("plan", config, *SMALL, *MUON, "--world", world, "--verbose")
            self.expect(run, 0)
            steps = re.findall(r"^  (\S*weight) +\[.*?\] +[^;\n]*(; Muon.*)?$", run.output, re.MULTILINE)
            muon = {name.split(".")[-2] for name, owner in steps if owner}
            self.assertEqual(muon, {"wq", "wv", "wo", "w1", "w2", "w3"})
            self.assertEqual({owner for _, owner in steps if owner}, owners)
            self.assertTrue({"weight", "attention.wk.weight", "ffn_norm.weight"} <= {n for n, owner in steps if not owner})

    def test_the_first_step_after_a_resume_reports_no_updates_of_the_one_before(self):
        words = [*MUON, *SAVES, "--metrics.log_freq=1", "--optimizer.muon.singular_value_freq=1"]
        run = self.train(*words, steps=2)
        lines = self.lines(self.train(*words, steps=4, folder=run.folder))
        measured = ["update_rms.wq", "update_singular_value", "update_measured_matrix"]
        found = [(line["step"], [name for name in measured if name in line["statistics"]]) for line in lines]
        self.assertEqual(found, [(1, []), (2, measured), (3, []), (4, measured)])

    def test_singular_values_are_measured_when_asked_for(self):
        run = self.train(*MUON, "--optimizer.muon.singular_value_freq=2", "--metrics.log_freq=1", steps=6)
        lines = [line["statistics"] for line in self.lines(run)]
        # Steps 2 and 4 measure, and each is reported from the next step on.
        self.assertEqual([line.get("update_measured_matrix") for line in lines], [None, None, 1, 1, 2, 2])
        self.assertEqual(["update_singular_value" in line for line in lines], [False] * 2 + [True] * 4)
        for line in lines[2:]:
            self.assertGreater(line["update_singular_value"], 0.9)
            self.assertLess(line["update_singular_value"], 1.3)

    def test_ranks_report_what_one_process_reports(self):
        words = [*MUON, "--metrics.log_freq=1", "--training.global_batch_size=8", "--training.local_batch_size=2"]
        words += ["--optimizer.muon.singular_value_freq=1"]
        alone = self.lines(self.train(*words, steps=3))
        for layout in ({"dp_shard": 2}, {"tp": 2}, {"dp_replicate": 2}, {"pp": 2}):
            with self.subTest(layout=layout):
                run = self.launched(*words, *parallel(**layout), steps=3)
                for mine, theirs in zip(self.lines(run), alone, strict=True):
                    self.assertEqual(list(mine["statistics"]), list(theirs["statistics"]))
                    for name, value in theirs["statistics"].items():
                        self.assertAlmostEqual(mine["statistics"][name], value, delta=1e-4 * abs(value), msg=name)

    def test_a_checkpoint_is_the_state_of_torchs_optimizers(self):
        run = self.train(*MUON, "--optimizer.muon.adjust_lr_fn=match_rms_adamw", "--optimizer.lr=1e-3", *SAVES, steps=3)
        state = state_of(run.folder / "checkpoint/step-3")
        names = [key.removeprefix("optimizer.state.").removesuffix(".momentum_buffer")
                 for key in state if key.endswith(".momentum_buffer")]  # fmt: skip
        self.assertEqual(len(names), 2 * len(KINDS))
        self.assertNotIn(f"optimizer.state.{names[0]}.step", state)
        self.assertNotIn(f"optimizer.state.{names[0]}.exp_avg", state)
        parameters = [torch.nn.Parameter(state[name].clone()) for name in names]
        muon = torch.optim.Muon(parameters)
        settings = {key: state[f"optimizer.param_groups.{names[0]}.{key}"] for key in muon.param_groups[0] if key != "params"}
        self.assertEqual(settings["ns_steps"], 5)
        self.assertEqual(settings["adjust_lr_fn"], "match_rms_adamw")
        self.assertAlmostEqual(state[f"optimizer.param_groups.{names[0]}.initial_lr"], 0.02)
        buffers = {i: {"momentum_buffer": state[f"optimizer.state.{name}.momentum_buffer"]} for i, name in enumerate(names)}
        muon.load_state_dict({"state": buffers, "param_groups": [{"params": list(range(len(names))), **settings}]})
        for parameter, name in zip(parameters, names):
            self.assertTrue(torch.equal(muon.state[parameter]["momentum_buffer"], state[f"optimizer.state.{name}.momentum_buffer"]))
        others = [key.removeprefix("optimizer.state.").removesuffix(".exp_avg") for key in state if key.endswith(".exp_avg")]
        self.assertGreater(len(others), 5)
        self.assertLessEqual({"tok_embeddings.weight", "norm.weight", "output.weight"}, set(others))
        adam = torch.optim.AdamW([torch.nn.Parameter(state[name].clone()) for name in others])
        settings = {key: state[f"optimizer.param_groups.{others[0]}.{key}"] for key in adam.param_groups[0] if key != "params"}
        moments = {i: {key: state[f"optimizer.state.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                   for i, name in enumerate(others)}  # fmt: skip
        adam.load_state_dict({"state": moments, "param_groups": [{"params": list(range(len(others))), **settings}]})
        self.assertEqual(adam.param_groups[0]["lr"], settings["lr"])
        for i, parameter in enumerate(adam.param_groups[0]["params"]):
            self.assertEqual(adam.state[parameter]["step"].item(), 3.0)
            for moment in ("exp_avg", "exp_avg_sq"):
                self.assertTrue(torch.equal(adam.state[parameter][moment], moments[i][moment]), others[i])

    def test_a_checkpoint_goes_on_in_another_layout(self):
        words = [*MUON, *SAVES, "--training.global_batch_size=8", "--training.local_batch_size=2"]
        first = self.train(*words, steps=3)
        folders = {}
        for name, layout in (("alone", {}), ("fsdp", {"dp_shard": 2}), ("tp", {"tp": 2}), ("pp", {"pp": 2})):
            folders[name] = self.fresh_folder()
            shutil.copytree(first.folder, folders[name])
            start = self.launched if layout else self.train
            start(*words, *parallel(**layout), steps=4, folder=folders[name])
        alone = state_of(folders.pop("alone") / "checkpoint/step-4")
        momenta = [name for name in alone if name.endswith("momentum_buffer")]
        self.assertEqual(len(momenta), 2 * len(KINDS))
        for layout, folder in folders.items():
            with self.subTest(layout=layout):
                found = state_of(folder / "checkpoint/step-4")
                for name in (*momenta, "layers.0.attention.wq.weight", "layers.1.feed_forward.w2.weight", "norm.weight"):
                    error = (found[name] - alone[name]).norm() / alone[name].norm()
                    self.assertLess(error.item(), 1e-5, name)

    def test_another_layout_resumes_from_the_same_bits(self):
        words = [*MUON, *SAVES, "--training.global_batch_size=8", "--training.local_batch_size=2"]
        first = self.launched(*words, *parallel(dp_shard=2), steps=3)
        saved = state_of(first.folder / "checkpoint/step-3")
        states = [name for name in saved if name.endswith(("momentum_buffer", "exp_avg", "exp_avg_sq", ".weight"))]
        self.assertGreater(len(states), 4 * len(KINDS))
        # A step that is skipped changes nothing, so a run that skips its first saves what it has loaded.
        self.use_dying_program()
        words += ["--training.non_finite=skip"]
        for layout in ({}, {"dp_replicate": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}):
            with self.subTest(layout=layout), mock.patch.dict(os.environ, {"NAN_IN": "0 4 layers.0.attention.wq.weight"}):
                folder = self.fresh_folder()
                shutil.copytree(first.folder, folder)
                start = self.launched if layout else self.train
                run = start(*words, *parallel(**layout), steps=4, folder=folder)
                self.assertEqual(run.training("skipped_steps")[-1], 1)
                found = state_of(folder / "checkpoint/step-4")
                for name in states:
                    self.assertTrue(torch.equal(found[name], saved[name]), name)

    def test_after_a_kill_inside_a_save_another_layout_resumes_from_the_bits_of_the_save_before(self):
        words = [*MUON, *SAVES, "--training.global_batch_size=8", "--training.local_batch_size=2", "--training.non_finite=skip"]
        words += ["--checkpoint.interval=1"]
        layouts = [{}, {"dp_replicate": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}]
        self.use_dying_program()
        pick = random.Random(5)
        for number in range(50 if FULL else 5):
            killed, step, layout = pick.randrange(2), pick.randrange(2, 4), layouts[number % len(layouts)]
            place = f"{killed} {step} save 0"
            with self.subTest(layout=layout, place=place):
                folder = self.fresh_folder()
                launched = ["launch", "-n", 2, DEBUG_CONFIG, *SMALL, *words, *parallel(dp_shard=2), "--training.steps=4"]
                with mock.patch.dict(os.environ, {"DIE_IN": place}):
                    self.expect(self.titan(*launched, f"--job.dump_folder={folder}"), KILLED)
                whole = [path.parent for path in (folder / "checkpoint").glob("step-*/manifest.json")]
                self.assertEqual(sorted(path.name for path in whole), [f"step-{n}" for n in range(1, step)])
                saved = state_of(folder / "checkpoint" / f"step-{step - 1}")
                start = self.launched if layout else self.train
                with mock.patch.dict(os.environ, {"NAN_IN": f"0 {step} layers.0.attention.wq.weight"}):
                    start(*words, *parallel(**layout), steps=step, folder=folder)
                found = state_of(folder / "checkpoint" / f"step-{step}")
                for name in saved:
                    if name.endswith(("momentum_buffer", "exp_avg", "exp_avg_sq", ".weight")):
                        self.assertTrue(torch.equal(found[name], saved[name]), name)

    def test_a_resume_from_another_optimizers_state_says_which_moments_begin_from_zero(self):
        said = ("14 parameters, such as layers.0.attention.wq.weight, had another optimizer when it was saved: moments "
                "begin from zero")  # fmt: skip
        matrix, norm = "optimizer.state.layers.0.attention.wq.weight.", "optimizer.state.norm.weight."
        adam = self.train(*SAVES, steps=2)
        again = self.train(*MUON, *SAVES, steps=3, folder=adam.folder)
        self.assertEqual([line for line in again.messages("WARNING") if "moments" in line], [said])
        self.assertEqual(again.training("step"), [1, 2, 3])
        state = state_of(adam.folder / "checkpoint/step-3")
        # The matrix has the momentum of one step alone, and no state of AdamW; the norm has made all steps.
        self.assertEqual([key for key in state if key.startswith(matrix)], [matrix + "momentum_buffer"])
        self.assertEqual(state[norm + "step"].item(), 3)
        muon = self.train(*MUON, *SAVES, steps=2)
        back = self.train(*SAVES, steps=3, folder=muon.folder)
        self.assertEqual([line for line in back.messages("WARNING") if "moments" in line], [said])
        state = state_of(muon.folder / "checkpoint/step-3")
        self.assertNotIn(matrix + "momentum_buffer", state)
        self.assertEqual((state[matrix + "step"].item(), state[norm + "step"].item()), (1, 3))

    def test_spikes_skips_offload_and_bf16_states_compose(self):
        guard = ["--training.spike_guard=skip", "--training.spike_window=8", "--training.spike_threshold=0.3"]
        run = self.train(*MUON, *guard, steps=16)
        self.assertGreater(run.training("skipped_steps")[-1], 0)
        resident = self.train(*MUON, "--debug.dump_steps=3", steps=3).dump(3)
        offloaded = self.train(*MUON, "--optimizer.offload", "--debug.dump_steps=3", steps=3).dump(3)
        for name, weight in resident.parameters_after.items():
            self.assertTrue(torch.equal(offloaded.parameters_after[name], weight), name)
        narrow = ["--optimizer.state_dtype=bfloat16", "--training.dtype=bfloat16"]
        losses = self.train(*MUON, *narrow, steps=8).training("loss")
        wide = self.train(*MUON, steps=8).training("loss")
        self.assertAlmostEqual(losses[-1], wide[-1], delta=0.02 * wide[-1])

    def test_what_it_does_not_step_or_compose_with_is_refused(self):
        for words, said in (
            (["--optimizer.early_step_in_backward"], "optimizer.early_step_in_backward steps a block before"),
            (["--training.enable_cpu_offload"], "training.enable_cpu_offload keeps gradients on the host"),
        ):
            self.assertIn(said, self.train(*MUON, *words, exit_code=BAD_CONFIG).errors)
        group = "\n[[optimizer.param_groups]]\nmatch = '{}'\nupdate = 'muon'\n"
        for match, said in (("tok_embeddings", "which is an embedding"), ("attention_norm", "which is no matrix"),
                            ("atention.wq", "did you mean attention.wq")):  # fmt: skip
            config = self.write("forced.toml", DEBUG_CONFIG.read_text() + group.format(match))
            self.assertIn(said, self.train(*MUON, config=config, exit_code=BAD_CONFIG).errors)
