"""Spikes of loss or gradient norm: reported, or their steps skipped, and the same after a restart. An implausible first
loss is explained."""

from __future__ import annotations

import json
import random
import re
import unittest

from program import OK, BehaviourTest
from rank_processes import RanksTest

SPIKE = re.compile(r"step (\d+): (loss|gradient norm) \S+ is \S+ standard deviations above the mean of up to the last 8 steps")
WORDS = ["--debug.seed=5", "--training.spike_window=8", "--training.spike_threshold=5", "--training.dataset=text"]
STEPS, ODD = 30, 20


class SpikyCorpus(BehaviourTest):
    def setUp(self):
        super().setUp()
        # Sentences that are soon learnt, with a stretch of noise at the tokens of about step ODD.
        pick = random.Random(3)
        names = ["Anna", "Ben", "Cleo", "Dan"]
        sentences = [f"{pick.choice(names)} saw the {pick.choice(['cat', 'dog', 'sun'])} today. " for _ in range(4000)]
        noise = "".join(chr(pick.randrange(0x4E00, 0x9FFF)) for _ in range(90))
        sentences.insert(340, noise)
        self.words = [*WORDS, f"--training.dataset_path={self.write('corpus.txt', ''.join(sentences))}"]


class Spikes(SpikyCorpus):
    def spikes(self, run) -> list[int]:
        return [int(match[1]) for match in map(SPIKE.match, run.messages("WARNING")) if match]

    def test_a_spike_is_told_and_the_step_is_made(self):
        run = self.train(*self.words, "--training.spike_guard=warn", steps=STEPS)
        found = self.spikes(run)
        self.assertTrue(found and all(ODD <= step < ODD + 5 for step in found), run.output)
        self.assertIn("the step was applied", run.output)
        self.assertEqual([line["step"] for line in run.metrics() if line.get("event") == "spike"], found)
        plain = self.train(*self.words, "--training.spike_guard=off", steps=STEPS)
        self.assertEqual(run.training("loss"), plain.training("loss"))
        self.assertEqual(self.spikes(plain), [])

    def test_a_spike_that_is_skipped_changes_no_weight(self):
        words = [*self.words, "--training.spike_guard=skip"]
        first = self.spikes(self.train(*words, steps=STEPS))[0]
        run = self.train(*words, f"--debug.dump_steps={first}", steps=first + 1)
        dump = run.dump(first)
        for name, value in dump.parameters.items():
            self.assertTrue(value.equal(dump.parameters_after[name]), name)
        self.assertEqual(run.training("skipped_steps")[-2:], [1, len(self.spikes(run))])

    def test_a_run_that_goes_on_judges_as_the_unbroken_one(self):
        words = [*self.words, "--training.spike_guard=skip", "--training.steps=30", "--checkpoint.enable"]
        words += ["--checkpoint.interval=5", "--checkpoint.keep_latest_k=0", "--checkpoint.last_save_model_only=false"]
        whole = self.train(*words, steps=STEPS)
        found = self.spikes(whole)
        self.assertTrue(found)
        # From a checkpoint whose window holds what the spike is judged by.
        before = (found[0] - 1) // 5 * 5
        rest = self.train(*words, f"--checkpoint.load_step={before}", steps=STEPS, folder=whole.folder)
        lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
        losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
        self.assertEqual(losses[STEPS:], losses[before:STEPS])
        self.assertEqual(self.spikes(rest), [step for step in found if step > before])

    def test_another_window_starts_empty_and_says_so(self):
        words = [*self.words, "--training.spike_guard=warn", "--checkpoint.enable", "--checkpoint.interval=2"]
        first = self.train(*words, "--checkpoint.last_save_model_only=false", steps=2)
        run = self.train(*words, "--training.spike_window=16", steps=3, folder=first.folder)
        self.assertIn(
            "training.spike_window differs from the checkpoint's: the spike guard starts with an empty window",
            run.messages("WARNING"),
        )


class SpikesOfRanks(SpikyCorpus, RanksTest):
    def test_all_ranks_leave_out_the_same_steps(self):
        words = ["--parallelism.data_parallel_shard_degree=-1", "--metrics.save_for_all_ranks", f"--training.steps={STEPS}"]
        run = self.launch_training(2, *self.words, *words, "--training.spike_guard=skip", "--training.local_batch_size=1")
        self.assertEqual(run.end(), OK, run.text())
        told = []
        for folder in (self.folder / "run", self.folder / "run" / "rank-0001"):
            lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            told.append([line for line in lines if line.get("event") == "spike"])
        self.assertTrue(told[0], run.text())
        self.assertTrue(all(line["skipped"] for line in told[0]))
        self.assertEqual(told[0], told[1])


class FirstLoss(BehaviourTest):
    WORDS = ["--checkpoint.enable", "--checkpoint.interval=1000", "--debug.seed=2"]

    def explanations(self, run) -> list[str]:
        return [line for line in run.messages("WARNING") if line.startswith("the first loss is")]

    def test_new_weights_give_the_loss_of_knowing_nothing_and_need_no_words(self):
        self.assertEqual(self.explanations(self.train(steps=1)), [])

    def test_a_load_after_which_nothing_is_known_is_explained(self):
        untrained = self.train(*self.WORDS, "--optimizer.lr=1e-12", "--checkpoint.folder=weights", steps=1)
        path = untrained.folder / "weights" / "step-1"
        run = self.train(*self.WORDS, f"--checkpoint.initial_load_path={path}", steps=1)
        (line,) = self.explanations(run)
        self.assertRegex(line, r"the first loss is [78]\.\d\d; .* ln V = 7\.62 \(V = 2,048 tokens\): the loaded weights")

    def test_a_load_of_trained_weights_and_a_run_that_goes_on_need_no_words(self):
        trained = self.train(*self.WORDS, "--optimizer.lr=1e-2", "--checkpoint.folder=weights", steps=30)
        path = trained.folder / "weights" / "step-30"
        self.assertEqual(self.explanations(self.train(*self.WORDS, f"--checkpoint.initial_load_path={path}", steps=1)), [])
        full = ["--checkpoint.last_save_model_only=false", *self.WORDS]
        started = self.train(*full, steps=1)
        self.assertEqual(self.explanations(self.train(*full, steps=2, folder=started.folder)), [])


if __name__ == "__main__":
    unittest.main()
