"""What a run shows: the start, the console line that scripts parse, metrics.jsonl, colours, the learning-rate table."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import unittest

from program import OK, ROOT, BehaviourTest

NUMBER = r"-?[\d.,]+(e[+-]\d+)?"
# Former releases' fields first, in their order and form; then what this program adds.
CONSOLE_LINE = re.compile(
    r"step: +(?P<step>\d+)  loss: +(?P<loss>\d+\.\d{5})  grad_norm: +(?P<grad_norm>\d+\.\d{4})"
    r"  memory: +(?P<memory>\d+\.\d\d)GiB\((?P<share>\d+\.\d\d)%\)  tps: (?P<tps>[\d,]+)  tflops: (?P<tflops>[\d,.]+)"
    r"  mfu: (?P<mfu>nan%|\d+\.\d\d%)  lr: (?P<lr>\d\.\d\de[+-]\d\d)  data: (?P<data>[\d.]+)ms  eta: \S.*"
)
METRIC_KEYS = [
    *("step", "loss", "global_max_loss", "grad_norm", "lr", "tps", "step_seconds", "data_wait_seconds"),
    *("memory_peak_bytes", "memory_peak_rss_bytes", "tokens_seen", "tflops"),
    *("data_queue_ready", "data_queue_depth", "data_documents", "data_tokens"),
    *("data_bad_records", "data_loops", "skipped_steps"),
]


class Shown(BehaviourTest):
    def test_the_start_names_device_model_dtypes_memory_batch_and_text(self):
        run = self.train("--training.global_batch_size=4")
        text = "\n".join(run.messages())
        for pattern in (
            r"^Starting job: Llama 3 debug model",
            r"^Defaults and formulas of February 2026 \(job.generation 2026\): lr_scheduler.warmup_steps at .*:\d+:1 is ",
            r"^Reading the tokenizer \./configs/tokenizers/stories\.model$",
            r"^(CPU|CUDA capacity): .+ with [\d.]+ GiB memory, 1 threads$",
            r"^TikTokenizer built: #words 2048, BOS ID 1792, EOS ID 1793$",
            r"^Building llama3 debugmodel with dim 64, 2 layers",
            r"^model.name = \"llama3\" means no rotary scaling",
            r"^Model llama3 debugmodel size: 393,536 total parameters$",
            r"^dtypes: parameters float32, compute float32, gradients float32, optimizer states float32$",
            r"^  parameters +[\d.]+ [KMG]iB$",
            r"^  gradients +[\d.]+ [KMG]iB$",
            r"^  optimizer state +[\d.]+ [KMG]iB$",
            r"^  together +[\d.]+ [KMG]iB$",
            r"^first 32 tokens of the first batch: <\|begin_of_text\|>[A-Z]\w+",
            r"local batch size 2, global batch size 4, gradient accumulation steps 2, sequence length 64, total steps 2"
            r".* 256 tokens per step$",
            r"^Training starts at step 1$",
            r"^memory by purpose, at the peak of the first step:$",
            r"^Training completed$",
        ):
            self.assertRegex(text, re.compile(pattern, re.MULTILINE))
        self.assertIn(f"outputs lie in {run.folder}", run.messages()[-3])
        self.assertEqual([message.split()[-1] for message in run.messages()[-2:]],
                         [str(run.folder / name) for name in ("metrics.jsonl", "report.html")])  # fmt: skip

    def test_the_console_line_keeps_its_fields_in_order(self):
        lines = [line for line in self.train(steps=3).messages() if line.startswith("step: ")]
        matches = [CONSOLE_LINE.fullmatch(line) for line in lines]
        self.assertTrue(all(matches), lines)
        self.assertEqual([int(match["step"]) for match in matches], [1, 2, 3])

    def test_console_and_metrics_tell_the_same(self):
        run = self.train(steps=3)
        lines = filter(None, map(CONSOLE_LINE.fullmatch, run.messages()))
        for match, metric in zip(lines, run.metrics(), strict=True):
            self.assertEqual(list(metric)[: len(METRIC_KEYS)], [key for key in METRIC_KEYS if key in metric])
            self.assertEqual(set(METRIC_KEYS) - set(metric), set())
            self.assertEqual(match["loss"], f"{metric['loss']:.5f}")
            self.assertEqual(match["grad_norm"], f"{metric['grad_norm']:.4f}")
            self.assertEqual(match["lr"], f"{metric['lr']:.2e}")
            self.assertEqual(metric["tokens_seen"], 128 * metric["step"])

    def test_step_one_and_every_log_freq_steps_are_shown(self):
        self.assertEqual(self.train("--metrics.log_freq=4", steps=9).training("step"), [1, 4, 8])

    def test_metrics_of_a_second_run_are_appended(self):
        folder = self.fresh_folder()
        self.train(folder=folder)
        self.assertEqual(self.train(folder=folder).training("step"), [1, 2, 1, 2])

    def test_the_parameter_groups_are_shown_with_tensors_and_parameters(self):
        config = self.config_with('[[optimizer.param_groups]]\nmatch = "norm"\nweight_decay_multiplier = 0\n')
        lines = self.train(config=config).messages()
        self.assertTrue(any(re.fullmatch(r"  norm +5 +320 +1 +0", line) for line in lines), lines)
        self.assertTrue(any(re.fullmatch(r"  \(all others\) +16 +393,216 +1 +1", line) for line in lines), lines)

    def test_a_shipped_config_trains_from_any_folder_and_says_where_it_found_its_files(self):
        words = self.command("--training.steps=1", "--metrics.save_for_all_ranks", folder=self.fresh_folder())[1:]
        run = self.titan(*words, cwd=self.folder)
        self.expect(run, OK)
        tokenizer = ROOT / "configs" / "tokenizers" / "stories.model"
        self.assertIn(f"Reading the tokenizer {tokenizer}", run.messages("INFO"))
        self.assertTrue(any(line.endswith(f"is not in the current folder; using {tokenizer}") for line in run.messages()))
        self.assertTrue(any("save_for_all_ranks has no effect here: " in line for line in run.messages("WARNING")))

    def test_an_option_without_effect_is_told(self):
        run = self.train("--optimizer.early_step_in_backward", "--training.max_norm=1.0")
        self.assertTrue(any("clipping is off" in line for line in run.messages("WARNING")))


class Colours(BehaviourTest):
    def on_terminal(self, *words, **variables: str) -> str:
        """What the program prints to a pseudo-terminal."""
        ours, theirs = pty.openpty()
        command = self.command("--training.steps=1", *words, folder=self.fresh_folder())
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # how a pseudo-terminal says that the other side is closed
            pass
        os.close(ours)
        text = b"".join(parts).decode(errors="replace")
        self.assertEqual(process.wait(), OK, text)
        return text

    def test_there_are_no_escape_codes_when_not_a_terminal(self):
        run = self.train(steps=1)
        self.assertNotIn("\x1b", run.output + run.errors)

    def test_a_terminal_sees_colours_unless_they_are_switched_off(self):
        self.assertIn("\x1b[31mstep:  1", self.on_terminal())
        self.assertNotIn("\x1b", self.on_terminal("--metrics.disable_color_printing"))
        self.assertNotIn("\x1b", self.on_terminal(NO_COLOR="1"))

    def test_the_terminal_that_mpirun_gives_its_ranks_is_none(self):
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        mpirun = dict(zip((f"OMPI_COMM_WORLD_{name}" for name in names), "0101"))
        self.assertNotIn("\x1b", self.on_terminal(**mpirun))
        self.assertIn("\x1b[31mstep:  1", self.on_terminal(**mpirun, FORCE_COLOR="1"))


class SavedConfig(BehaviourTest):
    def test_a_config_saved_as_toml_loads_and_trains_the_same(self):
        first = self.train("--job.save_config_file=used.toml", "--optimizer.lr=0.002")
        again = self.fresh_folder()
        run = self.titan(first.folder / "used.toml", f"--job.dump_folder={again}")
        run.folder = again
        self.expect(run, OK)
        self.assertEqual(run.training("loss"), first.training("loss"))

    def test_a_config_is_saved_as_json_under_any_other_name(self):
        run = self.train("--job.save_config_file=used.json", "--optimizer.lr=0.002")
        saved = json.loads((run.folder / "used.json").read_text())
        self.assertEqual(saved["optimizer"]["lr"], 0.002)


class LearningRateTable(BehaviourTest):
    def rates(self, *words) -> list[float]:
        run = self.titan("lr-table", "configs/debug_model.toml", *words)
        self.expect(run, OK)
        head, *rows = run.output.splitlines()
        self.assertEqual(head.split(), ["step", "lr", "factor"])
        self.assertEqual([int(row.split()[0]) for row in rows], list(range(1, len(rows) + 1)))
        return [float(row.split()[1]) for row in rows]

    def test_the_table_shows_the_rates_that_training_uses(self):
        words = ("--training.steps=6", "--lr_scheduler.warmup_steps=2", "--lr_scheduler.decay_ratio=0.5")
        used = self.train(*words[1:], steps=6).training("lr")
        for shown, rate in zip(self.rates(*words), used, strict=True):
            self.assertAlmostEqual(shown, rate, delta=1e-6 * rate)

    def test_warm_up_rises_the_plateau_stays_and_the_decay_falls(self):
        rates = self.rates(
            *("--training.steps=10", "--lr_scheduler.warmup_steps=4", "--optimizer.lr=1e-3"),
            *("--lr_scheduler.decay_ratio=0.4", "--lr_scheduler.decay_type=linear", "--lr_scheduler.min_lr_factor=0"),
        )
        self.assertEqual(rates[:7], [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3, 1e-3])
        self.assertEqual(rates[7:], sorted(rates[7:], reverse=True))
        self.assertGreater(rates[9], 0)

    def test_the_two_generations_warm_up_by_their_own_formulas(self):
        words = ("--training.steps=10", "--lr_scheduler.warmup_steps=4", "--optimizer.lr=1e-3")
        self.assertEqual(self.rates(*words, "--job.generation=2024")[0], 2e-4)
        self.assertEqual(self.rates(*words, "--job.generation=2026")[0], 2.5e-4)


if __name__ == "__main__":
    unittest.main()
