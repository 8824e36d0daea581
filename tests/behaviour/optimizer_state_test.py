"""What belongs to the optimizer's state: how many steps it has applied, and which parameters have none. Counters that say
"so far" go on after a resume."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import torch
from program import DEBUG_CONFIG, NON_FINITE, SMALL, BehaviourTest
from saved_state import state_of

SAVES = ["--checkpoint.enable", "--checkpoint.last_save_model_only=false", "--checkpoint.keep_latest_k=0"]
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1


class StepCount(BehaviourTest):
    def expect_torchs_update(self, dump, state: dict, rate: float, names) -> None:
        """One step of torch.optim.AdamW in float64 from the moments and counts of `state`."""
        clip = min(1.0, 1.0 / (dump.grad_norm + 1e-6))
        for name in names:
            before = dump.parameters[name].double()
            parameter = torch.nn.Parameter(before.clone())
            adam = torch.optim.AdamW([parameter], lr=rate, betas=BETAS, eps=EPS, weight_decay=DECAY)
            key = f"optimizer.state.{name}."
            adam.state[parameter] = {
                "step": torch.tensor(float(state[key + "step"])),
                "exp_avg": state[key + "exp_avg"].double().clone(),
                "exp_avg_sq": state[key + "exp_avg_sq"].double().clone(),
            }
            parameter.grad = dump.gradients[name].double() * clip
            adam.step()
            got, wanted = dump.parameters_after[name].double() - before, parameter.data - before
            self.assertLess((got - wanted).norm().item(), 1e-3 * wanted.norm().item(), name)

    def test_it_is_loaded_with_the_moments_whatever_else_is_left_out(self):
        first = self.train(*SAVES, steps=10)
        state = state_of(first.folder / "checkpoint/step-10")
        self.assertEqual(state["optimizer.state.norm.weight.step"].item(), 10)
        for left_out in ("train_state", "train_state,dataloader"):
            folder = self.fresh_folder()
            shutil.copytree(first.folder, folder)
            words = [*SAVES, f"--checkpoint.exclude_from_loading={left_out}", "--debug.dump_steps=1"]
            again = self.train(*words, "--lr_scheduler.decay_ratio=0", "--optimizer.lr=1e-3", steps=1, folder=folder)
            dump = again.dump()
            self.expect_torchs_update(dump, state, 1e-3, dump.parameters)
            self.assertEqual(state_of(folder / "checkpoint/step-1")["optimizer.state.norm.weight.step"].item(), 11)

    def test_skipped_steps_do_not_count(self):
        guard = ["--training.spike_guard=skip", "--training.spike_window=8", "--training.spike_threshold=0.3"]
        run = self.train(*SAVES, *guard, steps=16)
        skipped = run.training("skipped_steps")[-1]
        self.assertGreater(skipped, 0)
        state = state_of(run.folder / "checkpoint/step-16")
        counts = {value.item() for key, value in state.items() if key.startswith("optimizer.") and key.endswith(".step")}
        self.assertEqual(counts, {16 - skipped})
        flat_rate = ["--optimizer.lr=1e-3", "--lr_scheduler.decay_ratio=0", "--debug.dump_steps=17"]
        dump = self.train(*SAVES, *flat_rate, steps=17, folder=run.folder).dump(17)
        self.expect_torchs_update(dump, state, 1e-3, ["norm.weight", "layers.0.attention.wq.weight"])


class Frozen(BehaviourTest):
    PATTERN = "^tok_embeddings|wq"

    def setUp(self):
        super().setUp()
        group = f"\n[[optimizer.param_groups]]\nmatch = '{self.PATTERN}'\nlr_multiplier = 0\n"
        self.config = self.write("frozen.toml", DEBUG_CONFIG.read_text() + group)

    def test_a_frozen_group_has_no_gradient_no_part_in_the_norm_and_no_moments(self):
        bf16 = ["--training.mixed_precision_param=bfloat16"]
        for words, tolerance in (([], 1e-5), (["--optimizer.implementation=foreach"], 1e-5), (bf16, 1e-2)):
            with self.subTest(words):
                whole = self.train("--debug.dump_steps=1", *words, steps=1).dump()
                run = self.train("--debug.dump_steps=1,2", *SAVES, *words, config=self.config)
                dump = run.dump()
                frozen = {name for name in whole.gradients if name.startswith("tok_embeddings") or "wq" in name}
                self.assertEqual(set(whole.gradients) - set(dump.gradients), frozen)
                norm = sum(value.double().square().sum().item() for value in dump.gradients.values()) ** 0.5
                self.assertAlmostEqual(dump.grad_norm, norm, delta=1e-5 * norm)
                self.assertLess(dump.grad_norm, whole.grad_norm)
                for name, gradient in dump.gradients.items():
                    other = whole.gradients[name]  # of a product of other shape
                    self.assertLess((gradient - other).norm().item(), tolerance * other.norm().item(), name)
                for name, value in run.dump(2).parameters.items():
                    self.assertEqual(value.equal(run.dump(2).parameters_after[name]), name in frozen, name)
                state = state_of(run.folder / "checkpoint/step-2")
                moments = {key.split(".exp_avg")[0][16:] for key in state if key.endswith(".exp_avg")}
                self.assertEqual(moments, set(dump.gradients))

    def test_a_frozen_run_goes_on_and_may_be_thawed(self):
        whole = self.train(*SAVES, steps=4, config=self.config)
        broken = self.train(*SAVES, steps=2, config=self.config)
        self.train(*SAVES, steps=4, config=self.config, folder=broken.folder)
        self.assertEqual(broken.training("loss"), whole.training("loss"))
        thawed = self.train(*SAVES, steps=6, folder=broken.folder)
        self.assertIn("they begin from zero", thawed.output)
        state = state_of(broken.folder / "checkpoint/step-6")
        self.assertEqual(state["optimizer.state.tok_embeddings.weight.step"].item(), 2)
        self.assertEqual(state["optimizer.state.norm.weight.step"].item(), 6)

    def test_a_model_that_is_frozen_whole_is_refused(self):
        group = "\n[[optimizer.param_groups]]\nmatch = '.'\nlr_multiplier = 0\n"
        config = self.write("all.toml", DEBUG_CONFIG.read_text() + group)
        run = self.train(config=config, exit_code=64)
        self.assertIn("nothing is trained", run.errors)


class FrozenStage(BehaviourTest):
    """A pipeline rank that trains nothing holds no moment whose dtype it could look at."""

    def test_moments_in_bf16_are_saved_and_resumed_whichever_stage_is_frozen(self):
        for stage, pattern in (("first", r"tok_embeddings|layers\.0\."), ("last", r"^(norm|output|layers\.1)")):
            group = f"\n[[optimizer.param_groups]]\nmatch = '{pattern}'\nlr_multiplier = 0\n"
            config = self.write(f"{stage}.toml", DEBUG_CONFIG.read_text() + group)
            for optimizer in ("AdamW", "Muon"):
                with self.subTest(stage=stage, optimizer=optimizer):
                    words = [config, *SMALL, *SAVES, f"--optimizer.name={optimizer}", "--optimizer.state_dtype=bfloat16"]
                    folder = self.fresh_folder()
                    words += [f"--job.dump_folder={folder}"]
                    pipeline = ["--parallelism.pipeline_parallel_degree=2", "--parallelism.data_parallel_shard_degree=1"]
                    launched = ["launch", "-n", 2, *words, *pipeline]
                    for command in (launched + ["--training.steps=2"], launched + ["--training.steps=4"],
                                    [*words, "--training.steps=6"], launched + ["--training.steps=8"]):
                        run = self.titan(*command)
                        self.expect(run, 0)
                    steps = [json.loads(line).get("step") for line in (folder / "metrics.jsonl").read_text().splitlines()]
                    self.assertEqual([step for step in steps if step], list(range(1, 9)))
                    state = state_of(folder / "checkpoint/step-8")
                    moments = {value.dtype for key, value in state.items() if re.search(r"\.(exp_avg|momentum_buffer)$", key)}
                    self.assertEqual(moments, {torch.bfloat16})


class Counters(BehaviourTest):
    KEYS = ("data_loops", "data_bad_records", "skipped_steps", "tokens_seen")

    def last(self, run) -> dict:
        line = [line for line in run.metrics() if "loss" in line][-1]
        return {key: line.get(key, 0) for key in self.KEYS}

    def test_what_a_run_counts_goes_on_after_a_resume(self):
        stories = self.folder / "corpus.jsonl"
        source = pathlib.Path(DEBUG_CONFIG).parent / "corpora/stories.jsonl"
        lines = source.read_text().splitlines()[:4]
        stories.write_text("\n".join([*lines, "not json", '{"text": 5}']) + "\n")
        words = [*SAVES, f"--training.dataset_path={stories}", "--training.dataset=text", "--data.bad_record=skip"]
        words += ["--training.spike_guard=skip", "--training.spike_window=8", "--training.spike_threshold=0.3"]
        whole = self.train(*words, steps=20)
        self.assertGreater(min(self.last(whole).values()), 0)
        folder = self.fresh_folder()
        for steps in (7, 15, 20):
            # The schedule of the whole run.
            broken = self.train(*words, "--lr_scheduler.total_steps=20", steps=steps, folder=folder)
        self.assertEqual(self.last(broken), self.last(whole))


class NonFinite(BehaviourTest):
    def test_a_run_that_stays_non_finite_ends(self):
        words = ["--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--training.non_finite=skip"]
        run = self.train(*words, "--training.max_skipped_steps=5", steps=100, exit_code=NON_FINITE)
        self.assertIn("training.max_skipped_steps = 5", run.errors)
        steps = [line["step"] for line in run.metrics() if "loss" in line]
        self.assertLess(max(steps), 30)
        run = self.train(*words, steps=100, exit_code=NON_FINITE)
        self.assertEqual(run.output.count("the step is skipped"), 16)
        self.train(*words, "--training.max_skipped_steps=0", steps=40)
