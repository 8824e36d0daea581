"""What is wrong with a config is told at once, all of it, with place and remedy: exit code 64."""

from __future__ import annotations

import os
import subprocess
import unittest

import pytest
from program import BAD_CONFIG, OK, BehaviourTest

EXIT_LIMIT_SECONDS = 1.0


class BadConfig(BehaviourTest):
    def test_a_missing_config_is_named_with_an_example_of_one(self):
        missing = self.folder / "none.toml"
        run = self.titan(missing)
        self.expect(run, BAD_CONFIG)
        self.assertIn(str(missing), run.errors)
        self.assertIn("No such file or directory; name a TOML file", run.errors)

    def test_a_folder_given_as_config_is_named(self):
        run = self.titan(self.folder)
        self.expect(run, BAD_CONFIG)
        self.assertIn(f"{self.folder}: Is a directory; name a TOML file", run.errors)

    def test_a_config_that_is_no_toml_is_refused_with_line_and_column(self):
        for name, content in (("binary", b"\xff\xfe\x00"), ("open", b"[job\n"), ("half", b"[job]\ndescription = \n")):
            with self.subTest(name):
                path = self.write(f"{name}.toml", content)
                run = self.titan(path)
                self.expect(run, BAD_CONFIG)
                self.assertRegex(run.errors, rf"{path}:\d+:\d+: not valid TOML: .*; correct this line")

    def test_every_problem_of_file_and_command_line_is_listed_with_its_place(self):
        config = self.config_with("[training_]\nsteps = 3\n[metrics.x]\ny = 1\n")
        run = self.refused(
            BAD_CONFIG,
            ["training_", "metrics.x", "did you mean --training.steps?", "optimizer.lr", "not a number", '"7 layers"'],
            "--training.stps=4",
            "--optimizer.lr=abc",
            "--model.flavor=7 layers",
            config=config,
        )
        first, *problems = run.errors.strip().splitlines()
        self.assertEqual(first, f"{len(problems)} problems in the configuration:")
        self.assertEqual(sum(problem.startswith(f"{config}:") for problem in problems), 2)
        self.assertEqual(sum(problem.startswith("command line: ") for problem in problems), 3)

    def test_errors_and_missing_files_are_told_in_one_round(self):
        run = self.refused(
            BAD_CONFIG,
            ["3 problems", "did you mean --training.steps?"],
            "--training.stps=4",
            "--training.threads=100000",
            f"--model.tokenizer_path={self.folder / 'none.model'}",
        )
        self.assertIn("so many threads only wait for each other; use at most", run.errors)
        self.assertIn("none.model", run.errors.splitlines()[-1])

    def test_a_mistyped_subcommand_is_recognised(self):
        for words, meant in (
            (["configz"], "config"),
            (["config", "shw"], "config show"),
            (["tokenizer", "trian"], "train"),
            (["help", "trainign"], "training"),
        ):
            with self.subTest(words):
                run = self.titan(*words)
                self.expect(run, BAD_CONFIG)
                self.assertIn(f"did you mean {meant}?", run.errors)

    def test_todays_command_line_of_torchtitan_and_bare_words_are_answered_with_the_file_they_mean(self):
        for words, says in (
            (["--module", "llama3", "--config", "llama3_8b"], "in Python; this program reads TOML files; did you mean configs/llama3_8b.toml?"),
            (["--module=llama3", "--config=llama3_debugmodel", "--training.steps=1"], "did you mean configs/debug_model.toml?"),
            (["llama3_8b"], "llama3_8b is neither a subcommand nor a config file; did you mean configs/llama3_8b.toml?"),
            (["llama9"], "nor a config file; name a TOML file, such as configs/debug_model.toml (titan_train help lists"),
            (["launch", "-n", "2", "llama3_70b"], "a config file; did you mean configs/llama3_70b.toml?"),
            (["ranks", "llama3_70b"], "a config file; did you mean configs/llama3_70b.toml?"),
            (["train", "llama9"], "llama9 is neither a subcommand nor a config file; name a TOML file"),
            (["launch", "-n", "2", "rnks"], "rnks is neither a subcommand nor a config file; did you mean ranks?"),
            (["launch", "-n", "2", "ranks", "llama9"], "llama9 is neither a subcommand nor a config file; name a TOML"),
            (["debug_model.toml"], "did you mean configs/debug_model.toml?"),
            (["configs/debug_model.toml", "training.steps=5"], "an option begins with --; write --training.steps=5"),
        ):
            with self.subTest(words):
                run = self.titan(*words)
                self.expect(run, BAD_CONFIG)
                self.assertIn(says, run.errors)
                self.assertLessEqual(len(run.errors.splitlines()), 2, run.errors)

    def test_a_config_may_come_through_a_pipe_and_no_stream_is_read_for_ever(self):
        command = [self.program, "config", "show", "/dev/stdin"]
        whole = subprocess.run(command, input="[training]\nsteps = 3\n", capture_output=True, text=True, timeout=60)
        self.assertIn("steps = 3 ", whole.stdout)
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
            refused = subprocess.run(command, stdin=endless.stdout, capture_output=True, text=True, timeout=60)
            endless.kill()
        self.assertEqual(refused.returncode, BAD_CONFIG)
        self.assertIn("cannot read /dev/stdin: it has more than 16.00 MiB; name a TOML file", refused.stderr)

    def test_a_pipe_is_waited_for_as_long_as_something_may_write_to_it(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        run = self.titan("config", "show", pipe)
        self.expect(run, BAD_CONFIG)
        self.assertIn(f"{pipe}: no program opened this pipe for writing within 5 s; name a TOML file", run.errors)
        empty, slow = "true | {}", "(sleep 6; echo '[training]'; sleep 1; echo 'steps = 3') | {}"
        left = "echo '[training]\nsteps = 3' | (sleep 1; {})"
        for line, steps in ((empty, 10000), (slow, 3), (left, 3)):
            with self.subTest(line):
                command = line.format(f"'{self.program}' config show /dev/stdin")
                shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
                self.assertRegex(shown.stdout, rf"\nsteps = {steps}\b", shown.stderr)

    def test_help_on_a_subcommand_is_its_own_and_not_an_error(self):
        for words, says in (
            (["tokenizer", "train", "--help"], "Usage: titan_train tokenizer train [OPTIONS]"),
            (["tokenizer", "--help"], "Usage: titan_train tokenizer [OPTIONS] SUBCOMMAND"),
            (["config", "--help"], "titan_train config show"),
            (["completion", "--help"], "titan_train completion bash | zsh"),
        ):
            with self.subTest(words):
                run = self.titan(*words)
                self.expect(run, OK)
                self.assertIn(says, run.output)

    def test_a_refused_job_leaves_no_folder_behind(self):
        run = self.train("--training.stps=4", exit_code=BAD_CONFIG)
        self.assertFalse(run.folder.exists())

    @pytest.mark.alone
    def test_a_config_error_is_told_within_a_second(self):
        seconds = min(self.titan("configs/debug_model.toml", "--training.stps=4").seconds for _ in range(3))
        self.assertLess(seconds, EXIT_LIMIT_SECONDS)

    def test_a_sequence_beyond_the_model_is_refused_with_the_models_length(self):
        self.refused(
            BAD_CONFIG, ["training.seq_len = 1000000", "131072", "model.max_seq_len"], "--training.seq_len=1000000"
        )

    def test_a_longer_model_may_be_asked_for(self):
        longer = ("--model.max_seq_len=200000", "--training.seq_len=132000")
        run = self.titan("config", "show", "configs/debug_model.toml", *longer)
        self.expect(run, OK)

    def test_a_validation_sequence_beyond_the_model_is_refused_by_its_own_name(self):
        words = ("--validation.enable", "--validation.dataset=stories", "--validation.seq_len=1000000")
        self.refused(BAD_CONFIG, ["--validation.seq_len: ", "validation.seq_len = 1000000", "131072"], *words)

    def test_sizes_that_do_not_fit_together_are_told_where_they_were_given(self):
        for size, says in (
            ("dim=65", "dim = 65 is not a multiple of n_heads = 4"),
            ("n_kv_heads=3", "n_heads = 4 is not a multiple of n_kv_heads = 3"),
            ("dim=12", "head size 3 is odd"),
        ):
            with self.subTest(size):
                expected = ["--model.override.", says, "change the sizes in model.override"]
                self.refused(BAD_CONFIG, expected, f"--model.override.{size}")

    def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused_with_both_sizes(self):
        self.refused(BAD_CONFIG, ["2048", "1000", "model.tokenizer_path", "model.override.vocab_size"], "--model.override.vocab_size=1000")

    def test_a_device_that_is_not_there_is_refused_with_what_to_do(self):
        run = self.titan(*self.command("--training.steps=1", "--training.device=cuda", folder=self.fresh_folder())[1:])
        if run.code == OK:
            self.skipTest("there is a CUDA device here")
        self.expect(run, BAD_CONFIG)
        self.assertIn('say training.device = "cpu"', run.errors)

    def test_parameter_groups_that_match_nothing_or_twice_are_errors(self):
        group = '[[optimizer.param_groups]]\nmatch = "{}"\n'
        both = self.config_with(group.format("norm") + group.format("attention_norm") + group.format("experts"))
        run = self.refused(
            BAD_CONFIG,
            ['both "norm" and "attention_norm"', "make one pattern narrower", '"experts" matches no parameter'],
            config=both,
        )
        self.assertIn("layers.0.attention_norm.weight", run.errors)


if __name__ == "__main__":
    unittest.main()
