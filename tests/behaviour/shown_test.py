"""What a run shows: the start, the console line that scripts parse, metrics.jsonl, colours, the learning-rate table."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import unittest

from program import BAD_DATA, DEBUG_CONFIG, OK, ROOT, BehaviourTest, read_terminal

NUMBER = r"-?[\d.,]+(e[+-]\d+)?"
# Former releases' fields first, in their order and form; then what this program adds.
CONSOLE_LINE = re.compile(
    r"step: +(?P<step>\d+)  loss: +(?P<loss>\d+\.\d{5})  grad_norm: +(?P<grad_norm>\d+\.\d{4})"
    r"  memory: +(?P<memory>\d+\.\d\d)GiB\((?P<share>\d+\.\d\d)%\)  tps: (?P<tps>[\d,]+)  tflops: (?P<tflops>[\d,.]+)"
    r"  mfu: (?P<mfu>n/a|\d+\.\d\d%)  lr: (?P<lr>\d\.\d\de[+-]\d\d)  data: (?P<data>[\d.]+)ms  eta: \S.*"
)
METRIC_KEYS = [
    *("step", "loss", "global_max_loss", "grad_norm", "lr", "tps", "step_seconds", "data_wait_seconds"),
    *("memory_peak_bytes", "memory_peak_rss_bytes", "tokens_seen", "tflops"),
    *("data_queue_ready", "data_queue_depth", "data_documents", "data_tokens"),
    *("data_bad_records", "data_long_conversations", "data_loops", "skipped_steps"),
]


class Shown(BehaviourTest):
    def test_the_start_names_device_model_dtypes_memory_batch_and_text(self):
        run = self.train("--training.global_batch_size=4")
        text = "\n".join(run.messages())
        for pattern in (
            r"^Starting job: Llama 3 debug model",
            r"^Reading the tokenizer \./configs/tokenizers/stories\.model$",
            r"^(CPU|CUDA capacity): .+ with [\d.]+ GiB memory, 1 thread$",
            r"^TikTokenizer built: #words 2048, BOS ID 1792, EOS ID 1793$",
            r"^Building llama3 debugmodel with dim 64, 2 layers",
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
        for usual in ("Defaults and formulas", "rotary scaling", "spelling", "nan"):
            self.assertNotIn(usual, text)
        self.assertEqual(run.messages("WARNING") + run.errors.splitlines(), [])
        self.assertIn(f"outputs are in {run.folder}", run.messages()[-3])
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

    def test_the_first_the_last_and_every_log_freq_th_step_are_shown(self):
        for steps, expected in ((9, [1, 4, 8, 9]), (8, [1, 4, 8]), (3, [1, 3]), (1, [1])):
            run = self.train("--metrics.log_freq=4", steps=steps)
            self.assertEqual(run.training("step"), expected)
            lines = filter(None, map(CONSOLE_LINE.fullmatch, run.messages()))
            self.assertEqual([int(line["step"]) for line in lines], expected)
            self.assertIn(f"final loss {run.training('loss')[-1]:.5f} at step {steps}", run.messages()[-4])
            page = (run.folder / "report.html").read_text()
            self.assertIn(f"<td>step {steps}</td>", page)  # without JavaScript
            self.assertIn(f'"step":{steps},', page)

    def test_a_run_that_is_stopped_or_fails_shows_its_last_step_too(self):
        words = ("--metrics.log_freq=1000000", "--metrics.prometheus_file=run.prom", "--checkpoint.enable")
        run, folder = self.open_endless_run(*words, "--checkpoint.interval=4")
        self.wait_until((folder / "checkpoint/step-4").exists, "a later step than the first")
        run.send_signal(signal.SIGINT)
        run.wait(timeout=30)
        steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(steps), 2)
        self.assertTrue((folder / f"checkpoint/step-{steps[1]}").exists())
        self.assertIn(f"titan_step{{run=\"{folder}\"}} {steps[1]}\n", (folder / "run.prom").read_text())
        bad = self.write("bad.jsonl", '{"text": "A bear went to the river."}\n' * 60 + "no record\n")
        words = ("--training.dataset=text", f"--training.dataset_path={bad}")
        every = self.train(*words, steps=20, exit_code=BAD_DATA).training("step")
        self.assertGreater(every[-1], 2)
        last = self.train(*words, "--metrics.log_freq=1000", steps=20, exit_code=BAD_DATA).training("step")
        self.assertEqual(last, [1, every[-1]])

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

    def test_former_spellings_take_one_line_and_their_generation_another(self):
        old = self.write("old.toml", DEBUG_CONFIG.read_text() + "[experimental]\npipeline_parallel_degree = 1\n")
        words = ("--training.compile=false", "--metrics.rank_0_only")
        run = self.train(*words, "--job.generation=2024", config=old, steps=1)
        said = [line for line in run.messages("WARNING") if "spelling" in line]
        self.assertEqual(len(said), 1, run.output)
        self.assertRegex(said[0], r"old\.toml:\d+:1: experimental\.pipeline_parallel_degree is now .*, and 2 more former "
                                  rf"spellings; `titan_train config show {old}` prints today's spelling$")
        self.assertEqual(sum("of December 2024 (job.generation 2024): asked for at" in line for line in run.messages()), 1)

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
        text = read_terminal(ours).decode(errors="replace")
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


class WithoutItsLibrary(BehaviourTest):
    """titan_train in a folder of its own: libtitan.so, and LibTorch with it, is not there."""

    def run_alone(self, *words: str) -> subprocess.CompletedProcess:
        program = shutil.copy(self.program, self.folder / "titan_train")
        return subprocess.run([program, *words], check=False, capture_output=True, text=True)

    def test_commands_that_need_no_tensors_run(self):
        config = str(DEBUG_CONFIG)
        for words in (["help"], ["schedule", "--name", "1F1B", "--ranks=2", "--microbatches=2"], ["tokenizer", "-h"], ["data", "-h"], ["completion", "bash"],
                      ["lr-table", config], ["config", "show", config], ["plan", config, "--world=8", "--gpu=h100-sxm", "--search"]):
            self.assertEqual(self.run_alone(*words).returncode, OK, words)

    def test_any_other_names_the_library_that_is_missing(self):
        done = self.run_alone(str(DEBUG_CONFIG))
        self.assertEqual(done.returncode, 127, done.stderr)
        self.assertIn(str(self.folder / "libtitan.so"), done.stderr)
        self.assertIn("scripts/train.sh", done.stderr)


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

    def test_with_muon_it_says_what_rate_the_matrices_have(self):
        run = self.titan("lr-table", "configs/debug_model.toml", "--optimizer.name=Muon", "--optimizer.muon.lr=0.05")
        self.expect(run, OK)
        self.assertIn("that of the matrices is factor times optimizer.muon.lr = 0.05", run.errors)
        self.assertNotIn("matrices", run.output)
        self.assertNotIn("matrices", self.titan("lr-table", "configs/debug_model.toml").errors)

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
