"""Training on several ranks, as processes: the same losses and weights as alone, and an end that all ranks share."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from program import INTERRUPTED, OK, ROOT, SMALL, VALIDATION, BehaviourTest, Run
from training_test import distance

TINY_SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
TEST_TOKENIZER = ROOT.parent / "shared" / "data" / "test_tiktoken.model"
DETERMINED = ["--debug.seed=3", "--training.mixed_precision_param=float32"]


class Layouts(BehaviourTest):
    def launch(self, ranks: int, *words: object, name: str) -> Run:
        folder = self.folder / name
        start = time.monotonic()
        done = subprocess.run(
            [self.program, "launch", "-n", str(ranks), *map(str, words), f"--job.dump_folder={folder}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr, folder, time.monotonic() - start)

    def alone(self, *words: object, name: str = "alone") -> Run:
        run = self.titan(*words, f"--job.dump_folder={self.folder / name}")
        self.expect(run, OK)
        return Run(run.code, run.output, run.errors, self.folder / name, run.seconds)

    def words(self, samples: int, *more: str) -> list[str]:
        small = [word for word in SMALL if "local_batch_size" not in word]
        return ["configs/debug_model.toml", *small, *DETERMINED, f"--training.local_batch_size={samples}", *more]

    def test_dumps_of_a_step_are_whole_whatever_the_layout(self):
        for family in ("llama3", "qwen2", "qwen3"):
            with self.subTest(family):
                self.check_dumps(family)

    def check_dumps(self, family: str):
        more = ["--training.steps=2", "--debug.dump_steps=1", "--debug.dump_logits", "--training.max_norm=0"]
        if family != "llama3":
            more += [f"--model.name={family}", "--model.flavor=custom", "--model.override.hidden_dim=96"]
        alone = self.alone(*self.words(4, *more), name=f"{family}-alone").dump()
        for name, degrees in {
            "fsdp": ["--parallelism.data_parallel_shard_degree=2"],
            "tp": ["--parallelism.tensor_parallel_degree=2", "--training.local_batch_size=4"],
            "cp": ["--parallelism.context_parallel_degree=2", "--training.local_batch_size=4"],
        }.items():
            run = self.launch(2, *self.words(2, *more), *degrees, name=f"{family}-{name}")
            self.assertEqual(run.code, OK, run.output + run.errors)
            dump = run.dump()
            self.assertTrue(dump.tokens.equal(alone.tokens), "the same samples in the same order")
            self.assertTrue(dump.labels.equal(alone.labels))
            self.assertLess(distance(dump.logits, alone.logits), 1e-5)
            for key, gradient in alone.gradients.items():
                self.assertLess(distance(dump.gradients[key], gradient), 1e-5, key)
            for key, weight in alone.parameters.items():
                self.assertTrue(dump.parameters[key].equal(weight), key)

    def test_four_ranks_follow_the_curve_of_one_on_real_text(self):
        if not TINY_SHAKESPEARE.exists():
            self.skipTest("../shared/data is not there")
        text = [
            "--training.dataset=text",
            f"--training.dataset_path={TINY_SHAKESPEARE}",
            f"--model.tokenizer_path={TEST_TOKENIZER}",
            "--training.steps=20",
            "--metrics.log_freq=1",
            "--training.seq_len=64",
            "--training.threads=1",
            *DETERMINED,
        ]
        alone = self.alone("configs/debug_model.toml", *text, "--training.local_batch_size=4")
        four = self.launch(
            4,
            "configs/debug_model.toml",
            *text,
            "--training.local_batch_size=2",
            "--parallelism.data_parallel_shard_degree=2",
            "--parallelism.tensor_parallel_degree=2",
            name="four",
        )
        self.assertEqual(four.code, OK, four.output + four.errors)
        for mine, theirs in zip(four.training("loss"), alone.training("loss"), strict=True):
            self.assertAlmostEqual(mine, theirs, delta=2e-4 * theirs)

    def test_every_rank_writes_its_metrics_where_asked_and_only_rank_0_where_not(self):
        fsdp = ["--training.steps=3", "--metrics.log_freq=1", "--parallelism.data_parallel_shard_degree=3"]
        quiet = self.launch(3, *self.words(1, *fsdp), name="quiet")
        self.assertEqual(quiet.code, OK, quiet.output + quiet.errors)
        self.assertEqual(list(quiet.folder.rglob("metrics.jsonl")), [quiet.folder / "metrics.jsonl"])
        run = self.launch(3, *self.words(1, *fsdp), "--metrics.save_for_all_ranks", name="all")
        self.assertEqual(run.code, OK, run.output + run.errors)
        files = sorted(run.folder.glob("rank-*/metrics.jsonl"))
        self.assertEqual([file.parent.name for file in files], ["rank-0001", "rank-0002"])
        zero = run.metrics()
        self.assertEqual([line["step"] for line in zero], [1, 2, 3])
        for file in files:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for mine, others in zip(lines, zero, strict=True):
                self.assertEqual(list(mine), list(others))
                for shared in ("step", "loss", "grad_norm", "lr", "tokens_seen", "ranks"):
                    self.assertEqual(mine[shared], others[shared], shared)
                ranks = mine["ranks"]
                self.assertLessEqual(ranks["fastest_step_seconds"], mine["step_seconds"])
                self.assertLessEqual(mine["step_seconds"], ranks["slowest_step_seconds"])
                self.assertLessEqual(mine["memory_peak_bytes"], ranks["most_memory_bytes"])
            log = run.folder / "logs" / f"{file.parent.name}.log"
            self.assertIn(str(file), log.read_text(), "its log says where they are")

    def test_the_plan_of_narrow_reductions_is_shown(self):
        narrow = [*self.words(1), "--training.mixed_precision_reduce=bfloat16", "--training.keep_fp32=head"]
        run = self.titan("plan", *narrow, "--world", "2", "--verbose")
        self.expect(run, OK)
        self.assertRegex(run.output, r"layers\.0[: ].* gradient reduced in bfloat16")
        self.assertNotRegex(run.output, r"head: .* gradient reduced in")
        self.assertIn("gradients, narrowed", run.output)

    def test_the_plan_shows_memory_first_then_what_is_sent_and_shapes_when_asked_for(self):
        layout = ("--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=2")
        words = ("plan", *self.words(1), *layout, "--world", "8")
        short = self.titan(*words)
        self.expect(short, OK)
        head = short.output.split("\n\n")
        self.assertEqual([part.splitlines()[0] for part in head[1:]], ["memory of rank 0:", "per step:"])
        gathers = r"fsdp_gather +all-gather .* calls per step, \S+ \S+ of tensors; in a ring each rank sends \S+ \S+\n"
        self.assertRegex(short.output, gathers)
        self.assertNotIn("attention.wq.weight", short.output)
        run = self.titan(*words, "--verbose")
        self.expect(run, OK)
        self.assertTrue(run.output.startswith(short.output))
        exchanges = r"fsdp_gather all-gather \d × [\d,]+ bytes; fsdp_scatter reduce-scatter 1 × [\d,]+ bytes; dp_replicate"
        self.assertRegex(run.output, rf"layers\.0 to layers\.\d, \d alike: .*\n  each step: {exchanges}")
        self.assertIn("dp_replicate Replicate, tp Shard(0), fsdp StridedShard(0)", run.output)
        self.assertNotIn("layers.1:", run.output)

    def test_a_plan_without_a_world_is_for_as_many_ranks_as_the_degrees_ask_for(self):
        degrees = ("--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=3")
        run = self.titan("plan", *self.words(1), *degrees)
        self.expect(run, OK)
        self.assertRegex(run.output, r"; rank 0 of 6, as the degrees ask for at least \(--world: other numbers\)\n")
        beyond = self.titan("plan", *self.words(1), *degrees, "--rank", "6")
        self.expect(beyond, 64)
        self.assertIn("--rank 6 is not below the 6 that the degrees ask for; give --world, too", beyond.errors)
        dry = self.titan("plan", *self.words(1), *degrees, "--comm.mode=fake_backend", "--comm.world_size=12")
        self.expect(dry, OK)
        self.assertRegex(dry.output, r"; rank 0 of 12, as comm\.world_size says \(--world: other numbers\)\n")

    def test_the_program_of_a_step_is_shown_when_asked_for(self):
        words = ("plan", *self.words(4), "--training.global_batch_size=16", "--world", "2", "--program")
        run = self.titan(*words)
        self.expect(run, OK)
        passes = re.findall(r"^([a-z ]+)(, \d+ times)?: (\d+) instructions$", run.output, re.MULTILINE)
        self.assertEqual([name for name, *_ in passes], ["pass", "last pass", "update"])
        numbered = re.findall(r"^ +\d+  (.+)$", run.output, re.MULTILINE)
        self.assertEqual(len(numbered), sum(int(count) for *_, count in passes))
        self.assertLess(numbered.index("UNSHARD layers.0 slot 0"), numbered.index("FORWARD tok_embeddings microbatch 0"))
        self.assertEqual(numbered[-1], "ZERO_GRADIENT")
        wrong = self.titan(*words, "--rank", "2")
        self.expect(wrong, 64)
        self.assertEqual(len(wrong.errors.splitlines()), 1, wrong.errors)

    def test_keeping_weights_that_no_rank_shards_is_told_to_do_nothing(self):
        words = (*self.words(2, "--training.steps=1"), "--parallelism.fsdp_reshard_after_forward=always")
        run = self.launch(2, *words, "--parallelism.data_parallel_replicate_degree=2", name="replicas")
        self.expect(run, OK)
        said = [line for line in run.output.splitlines() if "has no effect here: no rank of 2 shards its weights" in line]
        self.assertEqual(len(said), 1, run.output)
        self.assertIn("WARNING", said[0])

    def test_batches_of_validation_that_are_larger_than_trainings_cross_between_tensor_ranks(self):
        more = ["--training.steps=1", *VALIDATION, "--validation.steps=1"]
        words = self.words(2, *more, "--validation.seq_len=128", "--validation.local_batch_size=8")
        tensor = ["--parallelism.tensor_parallel_degree=2", "--parallelism.enable_async_tensor_parallel"]
        run = self.launch(2, *words, *tensor, name="overlapped")
        self.assertEqual(run.code, OK, run.output + run.errors)
        losses = [line["validation_loss"] for line in [*self.alone(*words).metrics(), *run.metrics()] if "validation_loss" in line]
        self.assertEqual(len(losses), 2)
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-5 * losses[0])

    def test_a_signal_to_one_rank_stops_all_after_the_same_step(self):
        folder = self.folder / "stopped"
        words = [*self.words(2, "--training.steps=100000"), f"--job.dump_folder={folder}"]
        launcher = subprocess.Popen(
            [self.program, "launch", "-n", "2", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.addCleanup(launcher.kill)
        lines = []
        for line in launcher.stdout:
            lines.append(line)
            if "step:  3" in line:
                break
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGTERM)
        rest, _ = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, INTERRUPTED, "".join(lines) + rest)
        self.assertIn("stopped by a signal after step", rest)

    def test_a_dry_run_of_thirty_two_ranks_takes_one_process(self):
        tensor = "--parallelism.tensor_parallel_degree=2"
        layouts = [
            [],
            ["--training.enable_cpu_offload"],
            [tensor, "--parallelism.data_parallel_replicate_degree=4"],
            [tensor, "--parallelism.enable_async_tensor_parallel"],
        ]
        for layout in layouts:
            with self.subTest(layout):
                fake = ["--comm.mode=fake_backend", "--comm.world_size=32", "--comm.rank=5"]
                words = self.words(1, "--training.steps=1", *fake, *layout)
                run = self.titan(*words, f"--job.dump_folder={self.folder / 'fake'}")
                self.expect(run, OK)
                self.assertIn("rank 5 of 32", run.output)

    def test_a_dry_run_takes_several_axes_at_once(self):
        layout = ("--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=4")
        run = self.titan(
            *self.words(1, "--training.steps=1", "--comm.mode=fake_backend", "--comm.world_size=32", "--comm.rank=31"),
            *layout,
            f"--job.dump_folder={self.folder / 'fake'}",
        )
        self.expect(run, OK)
        for line in (r"fsdp_gather .* 4 ranks", r"dp_replicate .* 4 ranks", r"tp .* 2 ranks", "Applied HSDP", "dry run, step  1"):
            self.assertRegex(run.output, line)


if __name__ == "__main__":
    unittest.main()
