"""Checkpoints that cannot be used, where it takes several ranks or odd files to see; all others: tests/golden/train.txt."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest

from checkpoint_runs import SavedRunTest
from program import BAD_CONFIG, STORAGE


class Refused(SavedRunTest):
    def test_another_model_of_the_same_shapes_is_no_run_to_go_on_with(self):
        folder = self.run_with_checkpoints()
        self.refuse(folder, ["does not fit this run", "n_heads is 4"], "--model.override.n_heads=8", ranks=2)
        self.complete(1, folder, 5, "--model.norm_type=fused_rmsnorm")  # computes the same

    def test_weights_of_another_model_of_the_same_shapes_are_nothing_to_begin_with(self):
        folder = self.run_with_checkpoints()
        self.complete(1, self.folder / "ended", 2, "--checkpoint.last_save_model_only")
        for place in (folder / "checkpoint/step-4", self.folder / "ended/checkpoint/step-2"):
            initial = f"--checkpoint.initial_load_path={place}"
            told = self.refuse(self.folder / "new", ["does not fit this run", "n_heads is 4, this model's is 8", str(place)],
                               "--model.override.n_heads=8", initial)
            self.assertNotIn("or begin from the weights", told)
            for ranks in (1, 2):
                text = self.complete(ranks, self.folder / f"{place.name}-{ranks}", 1, "--model.name=llama2", initial)
                warnings = [line for line in text.splitlines() if "manifest.json: rope_theta is 500000" in line]
                self.assertEqual(len(warnings), 1, text)
                self.assertIn("this model's is 10000 (model.flavor); the weights are used anyway", warnings[0])
        text = self.complete(1, self.folder / "whole", 5, "--model.rope_scaling=llama3_1",
                             "--checkpoint.initial_load_model_only=false",
                             f"--checkpoint.initial_load_path={folder}/checkpoint/step-4")
        self.assertIn("manifest.json: rope_scaling is none", text)
        self.assertIn("Training starts at step 5", text)

    def test_another_vocabularys_weights_on_several_ranks_too(self):
        folder = self.run_with_checkpoints()
        told = self.refuse(folder, ["4096"], "--model.override.vocab_size=4096", ranks=2)
        self.assertIn("does not fit this run", told)

    def test_a_file_in_the_place_of_the_folder(self):
        folder = self.folder / os.fsdecode(b"no UTF-8: \xff")
        folder.mkdir()
        (folder / "checkpoint").write_text("a file")
        self.assertIn("checkpoint: Not a directory; checkpoint.folder (under job.dump_folder) must be a folder",
                      self.complete(2, folder, 4, code=STORAGE))
        self.assertEqual((folder / "checkpoint").read_text(), "a file")

    def test_one_that_is_damaged_is_passed_over_on_several_ranks_too(self):
        folder = self.run_with_checkpoints()
        file = folder / "checkpoint/step-4/__0_0.distcp"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
        text = self.complete(2, folder, 6)
        self.assertRegex(text, r"LOAD: step 2 from \S+ \(verified, .*\); step 4 is damaged: .*__0_0\.distcp")
        self.assertIn("damaged-4", [path.name for path in (folder / "checkpoint").iterdir()])

    def test_a_folder_that_cannot_be_written_is_found_before_the_first_step(self):
        folder = self.folder / "run"
        place = folder / "checkpoint"
        place.mkdir(parents=True)
        if os.geteuid() == 0:
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", place], capture_output=True, check=False)
            if done.returncode:
                self.skipTest("no right to mount a file system that cannot be written")
            self.addCleanup(subprocess.run, ["umount", "--lazy", place], check=True)
        else:
            place.chmod(0o500)
            self.addCleanup(place.chmod, 0o700)
        for ranks in (1, 2):
            self.refuse(folder, ["saving-trial", "every rank can write"], ranks=ranks)

    def test_the_model_alone_may_have_another_dtype_than_training(self):
        for dtype in ("bfloat16", "float16"):
            folder = self.folder / dtype
            words = ("--checkpoint.last_save_model_only", f"--checkpoint.export_dtype={dtype}")
            self.complete(1, folder, 2, *words)
            converted = rf"\(verified, [^)]*, (torch\.)?{dtype} read as (torch\.)?float32\)"
            text = self.complete(1, folder, 2, *words)
            self.assertRegex(text, r"LOAD: step 2 from \S+ " + converted)
            self.assertIn("step 2 holds the model of a finished run", text)
            initial = f"--checkpoint.initial_load_path={folder}/checkpoint/step-2"
            for ranks in (1, 2):
                text = self.complete(ranks, self.folder / f"new-{dtype}-{ranks}", 1, initial)
                self.assertRegex(text, r"LOAD: \S+ " + converted)

    def test_a_run_that_ended_in_hugging_faces_form_is_over(self):
        folder = self.folder / "run"
        words = ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf", "--checkpoint.interval=1000")
        self.complete(1, folder, 2, *words)
        before = self.tree(folder / "checkpoint")
        for ranks in (1, 2):
            text = self.complete(ranks, folder, 2, *words)
            self.assertRegex(text, r"LOAD: step 2 from \S+/step-2 \(Hugging Face, verified\)")
            self.assertIn("step 2 holds the model of a finished run", text)
            self.assertNotIn(" step:  ", text)
            self.assertEqual(self.tree(folder / "checkpoint"), before)
        self.assertIn("of a finished run", self.complete(1, folder, 2), "whatever form this run would end in")
        self.assertEqual(self.tree(folder / "checkpoint"), before)

    def test_a_finished_model_in_hugging_faces_form_is_neither_gone_on_from_nor_lost(self):
        folder = self.folder / "run"
        words = ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf")
        self.complete(1, folder, 3, *words, "--checkpoint.interval=1000")
        saved = self.tree(folder / "checkpoint/step-3")
        says = ["step 3 holds the model alone, in Hugging Face's form", "checkpoint.initial_load_path",
                "checkpoint.initial_load_in_hf", "another job.dump_folder"]
        for more in ((), words, ("--checkpoint.load_step=3",)):
            self.refuse(folder, says, *more)
        self.refuse(folder, says, ranks=2)
        initial = f"--checkpoint.initial_load_path={folder}/checkpoint/step-3"
        self.refuse(self.folder / "run-x", ["Hugging Face's form", "checkpoint.initial_load_in_hf"], initial)
        self.refuse(self.folder / "run-x", ["checkpoint.initial_load_in_hf", "config.json", "checkpoint.initial_load_path"],
                    "--checkpoint.initial_load_in_hf")
        text = self.complete(1, self.folder / "new", 4, "--checkpoint.initial_load_in_hf",
                             f"--checkpoint.initial_load_path={folder}/checkpoint/step-3")
        self.assertIn("21/21 tensors", text)
        # A run that resumes from before comes to that step again.
        other = self.folder / "other"
        self.complete(1, other, 2)
        shutil.copytree(folder / "checkpoint/step-3", other / "checkpoint/step-3")
        text = self.complete(1, other, 4, "--checkpoint.interval=1")
        self.assertRegex(text, r"LOAD: step 2 from \S+ \(verified, .*\); step 3 holds the model alone, in Hugging Face")
        self.assertEqual(self.tree(other / "checkpoint/replaced-3"), saved)
        self.assertEqual(self.checkpoints(other), [2, 3, 4])

    def test_a_damaged_one_in_hugging_faces_form_is_set_aside_like_any_other(self):
        folder = self.folder / "run"
        words = ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf")
        self.complete(1, folder, 4, *words)
        weights = folder / "checkpoint/step-4/model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        alone = self.folder / "alone"
        shutil.copytree(folder, alone)
        shutil.rmtree(alone / "checkpoint/step-2")
        before = self.tree(alone / "checkpoint")
        text = self.complete(1, alone, 4, *words, code=STORAGE)
        self.assertIn("step 4 is damaged", text)
        self.assertIn("move the folder away", text)
        self.assertEqual(self.tree(alone / "checkpoint"), before)
        for ranks in (2, 1):
            damaged = self.folder / f"run-{ranks}"
            shutil.copytree(folder, damaged)
            text = self.complete(ranks, damaged, 4, *words)
            self.assertRegex(text, r"LOAD: step 2 from \S+ \(verified, .*\); step 4 is damaged: the bytes of .*safetensors")
            kept = (damaged / "checkpoint/damaged-4/model.safetensors").read_bytes()
            self.assertEqual(kept, bytes(content))

    def test_a_seed_is_made_by_one_process(self):
        folder = self.folder / "run"
        text = self.complete(2, folder, 8, "--checkpoint.create_seed_checkpoint", code=BAD_CONFIG)
        self.assertIn("1 problem in the configuration:", text)
        self.assertIn("command line: --checkpoint.create_seed_checkpoint: checkpoint.create_seed_checkpoint = true with 2 "
                      "processes; start a single one", text)
        self.assertFalse(folder.exists())
        folder = self.folder / "seeded"
        self.assertIn("Created seed checkpoint", self.complete(1, folder, 4, "--checkpoint.create_seed_checkpoint"))
        self.assertIn("LOAD: step 0 from", self.complete(2, folder, 4, "--debug.seed=5"))


if __name__ == "__main__":
    unittest.main()
