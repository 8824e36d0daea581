"""What a run writes for other programs: TensorBoard's own reader, Prometheus, the word on Weights & Biases."""

from __future__ import annotations

import json
import pathlib
import re
import struct
import unittest

from program import OK, VALIDATION, BehaviourTest
from rank_processes import RanksTest

EVENTS = ["--metrics.enable_tensorboard"]
STEP_TAGS = {
    "loss_metrics/global_avg_loss": "loss",
    "loss_metrics/global_max_loss": "global_max_loss",
    "throughput(tps)": "tps",
    "tflops": "tflops",
    "time_metrics/end_to_end(s)": "step_seconds",
    "time_metrics/data_loading(s)": "data_wait_seconds",
    "grad_norm": "grad_norm",
    "n_tokens_seen": "tokens_seen",
    "lr": "lr",
}
# What torchtitan's last releases write, but for mfu(%): the peak of a CPU is not known.
ALL_TAGS = {
    *STEP_TAGS,
    "time_metrics/data_loading(%)",
    "memory/max_active(GiB)",
    "memory/max_active(%)",
    "memory/max_reserved(GiB)",
    "memory/max_reserved(%)",
    "memory/num_alloc_retries",
    "memory/num_ooms",
    "skipped_steps",
}
VALIDATION_TAGS = {
    "validation_metrics/loss",
    "validation_metrics/throughput(tps)",
    "validation_metrics/memory/max_active(GiB)",
    "validation_metrics/memory/max_active(%)",
    "validation_metrics/memory/max_reserved(GiB)",
    "validation_metrics/memory/max_reserved(%)",
}


def as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def read_events(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag, as TensorBoard itself reads a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def only_folder(path: pathlib.Path) -> pathlib.Path:
    (found,) = path.iterdir()
    return found


class TensorBoard(BehaviourTest):
    def test_tensorboard_reads_every_number_of_every_step_under_torchtitans_names(self):
        run = self.train(*EVENTS, *VALIDATION, "--validation.freq=2",
                         "--validation.steps=1", "--validation.seq_len=64", steps=4)  # fmt: skip
        folder = only_folder(run.folder / "tb")
        self.assertRegex(folder.name, r"^\d{8}-\d{4}$")
        self.assertIn(f"TensorBoard logging enabled. Logs will be saved at {folder}", run.messages())
        read = read_events(folder)
        self.assertEqual(set(read), ALL_TAGS | VALIDATION_TAGS)
        for tag, key in STEP_TAGS.items():
            self.assertEqual(read[tag], [(line["step"], as_float32(line[key])) for line in run.metrics() if key in line], tag)
        validations = [line for line in run.metrics() if "validation_loss" in line]
        self.assertEqual(
            read["validation_metrics/loss"], [(line["step"], as_float32(line["validation_loss"])) for line in validations]
        )

    def test_a_run_that_goes_on_is_one_curve_and_what_it_repeats_is_there_once(self):
        folder = self.fresh_folder()
        words = [*EVENTS, "--debug.seed=1", "--checkpoint.enable", "--checkpoint.interval=3"]
        words += ["--checkpoint.keep_latest_k=0", "--checkpoint.last_save_model_only=false"]
        self.train(*words, steps=5, folder=folder)
        self.train(*words, "--checkpoint.load_step=3", steps=8, folder=folder)
        read = read_events(only_folder(folder / "tb"))
        losses = read["loss_metrics/global_avg_loss"]
        self.assertEqual([step for step, _ in losses], list(range(1, 9)))
        written = {line["step"]: as_float32(line["loss"]) for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}
        self.assertEqual(dict(losses), written)
        self.assertEqual(len(list(only_folder(folder / "tb").iterdir())), 2, "one file per process")

    def test_a_folder_that_is_in_the_way_costs_the_events_and_not_the_run(self):
        folder = self.fresh_folder()
        folder.mkdir()
        (folder / "events").write_text("")
        run = self.train(*EVENTS, "--metrics.save_tb_folder=events", folder=folder)
        warnings = [line for line in run.messages("WARNING") if "TensorBoard" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn(str(folder / "events"), warnings[0])
        self.assertEqual(run.training("step"), [1, 2])


class TensorBoardOfRanks(RanksTest):
    def test_every_rank_that_is_to_write_has_its_folder_under_one_run(self):
        words = ["--training.steps=2", "--parallelism.data_parallel_shard_degree=-1", *EVENTS]
        run = self.launch_training(2, *words, "--metrics.save_for_all_ranks")
        self.assertEqual(run.end(), OK, run.text())
        ranks = sorted(only_folder(self.folder / "run" / "tb").iterdir())
        self.assertEqual([folder.name for folder in ranks], ["rank_0", "rank_1"])
        first, second = (read_events(folder)["loss_metrics/global_avg_loss"] for folder in ranks)
        self.assertEqual(first, second)
        self.assertEqual(len(first), 2)

    def test_rank_0_alone_writes_by_default(self):
        run = self.launch_training(2, "--training.steps=1", *EVENTS)
        self.assertEqual(run.end(), OK, run.text())
        (file,) = only_folder(self.folder / "run" / "tb").iterdir()
        self.assertTrue(file.is_file())


class Prometheus(BehaviourTest):
    def test_the_newest_numbers_lie_in_a_file_that_its_collector_reads(self):
        run = self.train("--metrics.prometheus_file=shown/titan.prom", steps=3)
        text = (run.folder / "shown" / "titan.prom").read_text()
        sample = re.compile(r'^(titan_\w+)\{run="([^"]*)"\} (\S+)$')
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, label, value = sample.match(line).groups()
                self.assertEqual(label, str(run.folder))
                values[name] = float(value)
        self.assertEqual(values["titan_step"], 3)
        self.assertEqual(values["titan_loss"], run.training("loss")[-1])
        self.assertEqual(values["titan_running"], 0)
        self.assertEqual(values["titan_tokens_seen_total"], run.training("tokens_seen")[-1])

    def test_a_place_that_cannot_be_written_to_is_warned_about_once(self):
        place = self.write("file", "") / "titan.prom"
        run = self.train(f"--metrics.prometheus_file={place}")
        warnings = [line for line in run.messages("WARNING") if "prometheus" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn(str(place), warnings[0])


class WeightsAndBiases(BehaviourTest):
    def test_the_option_names_the_command_that_hands_the_run_over(self):
        run = self.train("--metrics.enable_wandb", steps=1)
        (warning,) = [line for line in run.messages("WARNING") if "Weights & Biases" in line]
        self.assertIn(f"python3 scripts/to_wandb.py {run.folder} --follow", warning)


if __name__ == "__main__":
    unittest.main()
