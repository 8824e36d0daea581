"""What the machine does not give: memory (71), disk (73); and numbers that stop being numbers (72)."""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import unittest

from program import BAD_DATA, NON_FINITE, OK, OUT_OF_MEMORY, ROOT, STORAGE, BehaviourTest

GIB = 1 << 30
# Weights that grow by thousands a step, until float32 ends.
DIVERGE = """
[[optimizer.param_groups]]
match = "norm"
lr_multiplier = 1000.0
"""
DIVERGING = ["--optimizer.lr=1", "--training.max_norm=0", "--lr_scheduler.decay_ratio=0"]


class Memory(BehaviourTest):
    def test_a_batch_beyond_the_memory_ends_with_what_to_make_smaller(self):
        big = ("--training.local_batch_size=1024", "--training.seq_len=2048", "--model.override.dim=256", self.long_corpus(6))
        run = self.refused(
            OUT_OF_MEMORY,
            ["out of memory", "step 1; the plan takes", "it would fit with: training.local_batch_size = "],
            *big,
            limits={resource.RLIMIT_AS: 3 * GIB},
        )
        self.assertRegex(run.errors, r"tried to allocate [\d.]+ (bytes|.iB)")
        self.assertEqual(len(run.errors.strip().splitlines()), 1, run.errors)

    def test_a_model_beyond_the_memory_ends_the_same_way(self):
        self.refused(
            OUT_OF_MEMORY,
            ["out of memory"],
            "--model.flavor=8B",
            "--model.override.dim=0",
            "--model.override.n_layers=0",
            "--model.override.n_heads=0",
            limits={resource.RLIMIT_AS: 3 * GIB},
        )


class BeforeTheFirstLine(BehaviourTest):
    def described(self, code: int) -> str:
        """What the table of exit codes says of it."""
        table = (ROOT / "docs" / "debugging.md").read_text()
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {code} |")]
        self.assertIn(f" {code} ", (ROOT / "docs" / "launch.md").read_text())
        return row

    def test_libraries_that_cannot_be_mapped_are_127(self):
        run = self.titan("--version", limits={resource.RLIMIT_AS: GIB // 8})
        self.assertIn("cannot load libtitan.so: libtorch_cpu.so: failed to map segment", run.errors)
        self.assertIn("was not started", self.described(run.code))
        self.assertEqual(run.code, 127)

    def test_a_request_to_end_before_the_program_listens_is_143(self):
        config = self.folder / "config.toml"
        os.mkfifo(config)
        process = self.open_program([self.program, str(config)], stderr=subprocess.DEVNULL)
        with open(config, "w"):  # now the program waits for its config
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
        self.assertIn("SIGTERM", self.described(128 + signal.SIGTERM))


class Disk(BehaviourTest):
    def trains_on(self, folder: pathlib.Path, reason: str) -> None:
        run = self.train(folder=folder, steps=4)
        warnings = [line for line in run.messages("WARNING") if "metrics are not being written" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn(reason, warnings[0])
        self.assertIn(str(folder / "metrics.jsonl"), warnings[0])
        self.assertIn("Training completed", run.messages())
        self.assertEqual(sum(line.startswith("step: ") for line in run.messages()), 4)

    def test_files_of_the_run_are_no_links_pipes_or_devices(self):
        target = self.write("target", "kept")
        for name in ("run.lock", "metrics.jsonl", "run.json", "report.html"):
            for kind, make in (
                ("a symbolic link", lambda path: path.symlink_to(target)),
                ("a symbolic link", lambda path: path.symlink_to("/dev/full")),
                ("a named pipe", os.mkfifo),
            ):
                folder = self.fresh_folder()
                folder.mkdir()
                make(folder / name)
                run = self.train(folder=folder, exit_code=STORAGE)
                self.assertIn(f"{folder / name}: it is {kind}, ", run.errors)
                self.assertIn("name another folder in job.dump_folder", run.errors)
        self.assertEqual(target.read_text(), "kept")

    def test_a_working_folder_that_was_removed_is_named(self):
        folder = self.folder / "gone"
        folder.mkdir()
        script = f'cd {folder} && rmdir {folder} && exec "{self.program}" configs/debug_model.toml'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        self.assertEqual(done.returncode, STORAGE)
        self.assertIn("the working folder cannot be used", done.stderr)

    def test_an_escape_byte_in_a_description_does_not_reach_the_page(self):
        run = self.train("--job.description=a\x1b]0;title\x07b\x9b31m", steps=1)
        page = (run.folder / "report.html").read_bytes()
        self.assertNotIn(b"\x1b", page)
        self.assertNotIn(b"\x07", page)

    def test_pipes_as_inputs_of_a_report_end_with_a_sentence(self):
        whole = self.train(steps=1).folder
        for name in ("metrics.jsonl", "run.json"):
            folder = self.fresh_folder()
            shutil.copytree(whole, folder)
            (folder / name).unlink()
            os.mkfifo(folder / name)
            run = self.titan("report", str(folder), "--out", str(self.folder / "page.html"))
            self.assertEqual(run.code, BAD_DATA, run.errors)
            self.assertIn(str(folder / name), run.errors)

    def test_a_file_system_without_room_costs_metrics_only(self):
        folder = self.fresh_folder()
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder], capture_output=True).returncode:
            self.skipTest("no right to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", folder], check=True)
        (folder / "filler").write_bytes(bytes(4096))
        self.trains_on(folder, "No space left on device")

    def test_a_file_size_limit_costs_metrics_only(self):
        run = self.train(steps=4, limits={resource.RLIMIT_FSIZE: 400})
        warnings = [line for line in run.messages("WARNING") if "metrics are not being written" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn("File too large", warnings[0])
        self.assertIn("Training completed", run.messages())

    def test_a_metrics_file_that_cannot_be_opened_is_warned_about_once(self):
        folder = self.fresh_folder()
        (folder / "metrics.jsonl").mkdir(parents=True)
        self.trains_on(folder, "Is a directory")

    def test_a_dump_for_which_there_is_no_room_leaves_no_half_of_itself(self):
        folder = self.fresh_folder()
        limits = {resource.RLIMIT_FSIZE: 100_000}
        says = ["step.safetensors: File too large", "debug.dump_steps"]
        self.refused(STORAGE, says, "--debug.dump_steps=1", folder=folder, limits=limits)
        self.assertEqual(list((folder / "debug" / "step-1").iterdir()), [])


class NonFinite(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.config = self.config_with(DIVERGE)

    def test_the_run_ends_at_the_first_step_that_is_not_finite_and_names_it(self):
        run = self.refused(
            NON_FINITE,
            ["loss", "gradient norm", "not finite", "no weight was changed", 'training.non_finite = "skip"'],
            *DIVERGING,
            steps=200,
            config=self.config,
        )
        step = int(run.errors.split("step ")[1].split(":")[0])
        self.assertEqual(run.training("step"), list(range(1, step)))
        self.assertTrue(all(isinstance(loss, float) for loss in run.training("loss")))

    def test_skipped_steps_change_no_weight_and_are_counted(self):
        first = self.train(*DIVERGING, steps=200, config=self.config, exit_code=NON_FINITE)
        step = int(first.errors.split("step ")[1].split(":")[0])
        words = [*DIVERGING, "--training.non_finite=skip", f"--debug.dump_steps={step}"]
        run = self.train(*words, steps=step + 1, config=self.config)
        skipped = run.dump(step)
        for name, value in skipped.parameters.items():
            self.assertTrue(value.equal(skipped.parameters_after[name]), name)
        self.assertEqual(run.training("skipped_steps")[step - 2 : step], [0, 1])
        warned = [line for line in run.messages("WARNING") if line.startswith(f"step {step}: ")]
        self.assertEqual(len(warned), 1)
        self.assertIn("the step is skipped", warned[0])
        self.assertTrue(any(line.endswith("steps were skipped") for line in run.messages("WARNING")))
        self.assertEqual(run.code, OK)


if __name__ == "__main__":
    unittest.main()
