"""Files and folders in the place of checkpoints that are something else, or are not readable."""

from __future__ import annotations

import shutil
import subprocess
import unittest

from checkpoint_runs import SAVING, SavedRunTest, parallel
from program import STORAGE
from rank_processes import PEER_FAILURE, free_port


class OtherNames(SavedRunTest):
    def test_a_checkpoint_under_another_steps_name_is_set_aside_and_the_right_one_loaded(self):
        for ranks in (1, 2):
            folder = self.run_with_checkpoints()
            shutil.copytree(folder / "checkpoint/step-2", folder / "checkpoint/step-900")
            text = self.complete(ranks, folder, 6)
            self.assertRegex(text, r"LOAD: step 4 from \S+ \(verified, .*\); step 900 is damaged: it holds step 2, not the")
            self.assertEqual(self.checkpoints(folder), [2, 4, 6])
            self.assertTrue((folder / "checkpoint/damaged-900/manifest.json").exists())
            self.assertEqual(self.loaded(self.complete(ranks, folder, 8)), 6)
            shutil.rmtree(folder)

    def test_one_that_has_no_other_beside_it_is_refused_with_the_name_to_give_back(self):
        folder = self.run_with_checkpoints()
        shutil.rmtree(folder / "checkpoint/step-2")
        (folder / "checkpoint/step-4").rename(folder / "checkpoint/step-7")
        self.refuse(folder, ["step 7 is damaged: it holds step 4", "rename it to step-4"])
        self.refuse(folder, ["step 7 is damaged: it holds step 4"], "--checkpoint.load_step=7", ranks=2)
        initial = f"--checkpoint.initial_load_path={folder}/checkpoint/step-7"
        text = self.complete(1, self.folder / "new", 6, initial, "--checkpoint.initial_load_model_only=false")
        self.assertIn("step-7 holds step 4, not the step in its name", text)

    def test_a_finished_model_of_hugging_faces_form_under_another_steps_name_ends_no_run(self):
        folder = self.run_with_checkpoints()
        words = ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf", "--checkpoint.interval=1000")
        self.complete(1, self.folder / "ended", 3, *words)
        shutil.copytree(self.folder / "ended/checkpoint/step-3", folder / "checkpoint/step-9")
        text = self.complete(1, folder, 6)
        self.assertRegex(text, "LOAD: step 4 from .*; step 9 is damaged: it holds step 3")
        shutil.copytree(self.folder / "ended/checkpoint/step-3", folder / "checkpoint/step-10")
        text = self.complete(1, folder, 10, *words)
        self.assertIn("step 10 is damaged: it holds step 3, not the step in its name", text)
        self.assertEqual(self.loaded(text.replace("; step", "\n; step")), 6)

    def test_a_file_that_is_called_like_a_checkpoint_is_left_alone_and_said(self):
        for words in ((), ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf")):
            folder = self.run_with_checkpoints()
            (folder / "checkpoint/step-6").write_text("mine")
            text = self.complete(1, folder, 6, *words, code=STORAGE)
            self.assertIn("LOAD: step 4 ", text)
            self.assertIn("checkpoint/step-6 is a file, not a checkpoint: it is left alone", text)
            self.assertRegex(text, "the last checkpoint was not saved: .*the name of a file.*resumes from step 4")
            self.assertEqual((folder / "checkpoint/step-6").read_text(), "mine")
            self.assertEqual(sorted(path.name for path in (folder / "checkpoint").iterdir()), ["step-2", "step-4", "step-6"])
            shutil.rmtree(folder)

    def test_states_that_are_left_out_are_told_with_what_was_loaded(self):
        text = self.complete(2, self.run_with_checkpoints(), 4, "--checkpoint.exclude_from_loading=model,optimizer")
        self.assertRegex(text, r"(?m)LOAD: step 4 from \S+ \(verified, [^)]*\); left out: model, optimizer$")

    def test_a_link_to_another_runs_checkpoint_is_replaced_and_what_it_leads_to_stays(self):
        for words in ((), ("--checkpoint.last_save_model_only", "--checkpoint.last_save_in_hf")):
            folder = self.run_with_checkpoints()
            other = self.folder / "other"
            (folder / "checkpoint/step-4").rename(other)
            (folder / "checkpoint/step-4").symlink_to(other)
            before = self.tree(other)
            text = self.complete(1, folder, 4, "--checkpoint.load_step=2", *words)
            self.assertIn("LOAD: step 2 ", text)
            self.assertEqual(self.tree(other), before)
            self.assertFalse((folder / "checkpoint/step-4").is_symlink())
            self.assertTrue((folder / "checkpoint/replaced-4").is_symlink())
            shutil.rmtree(folder)
            shutil.rmtree(other)


class Rights(SavedRunTest):
    def setUp(self):
        super().setUp()
        self.give_up_rights()

    def test_what_this_user_may_not_read_ends_the_start_and_costs_no_step(self):
        folder = self.run_with_checkpoints()
        newest = folder / "checkpoint/step-4"
        before = self.tree(folder / "checkpoint")
        for name in (".", "manifest.json", ".metadata", "__0_0.distcp"):
            mode = (newest / name).stat().st_mode
            (newest / name).chmod(0)
            for ranks in (1, 2):
                text = self.complete(ranks, folder, 8, code=STORAGE)
                told = [line for line in text.splitlines() if "titan_train: " in line]
                self.assertEqual(len(told), 1, text)
                self.assertIn(f"{newest} may not be read by this user: ", told[0])
                self.assertIn("Permission denied", told[0])
                initial = f"--checkpoint.initial_load_path={newest}"
                text = self.complete(ranks, self.folder / "new", 8, initial, code=STORAGE)
                self.assertIn("or in checkpoint.initial_load_path where that names this one", text)
                self.assertNotIn("LOAD:", text)
            (newest / name).chmod(mode)
            self.assertEqual(self.tree(folder / "checkpoint"), before)
        self.assertEqual(self.loaded(self.complete(1, folder, 4)), 4)

    def test_a_folder_of_checkpoints_that_may_not_be_read_is_told_with_the_option_that_names_it(self):
        folder = self.run_with_checkpoints()
        before = self.tree(folder / "checkpoint")
        (folder / "checkpoint").chmod(0)
        for ranks in (1, 2):
            text = self.complete(ranks, folder, 8, code=STORAGE)
            told = [line for line in text.splitlines() if "titan_train: " in line]
            self.assertEqual(len(told), 1, text)
            self.assertIn("checkpoint: Permission denied; checkpoint.folder (under job.dump_folder) must be", told[0])
        (folder / "checkpoint").chmod(0o700)
        self.assertEqual(self.tree(folder / "checkpoint"), before)

    def test_an_older_one_that_is_asked_for_is_loaded_all_the_same(self):
        folder = self.run_with_checkpoints()
        (folder / "checkpoint/step-4").chmod(0)
        text = self.complete(1, folder, 3, "--checkpoint.load_step=2", "--checkpoint.interval=1000")
        self.assertIn("LOAD: step 2 ", text)
        self.assertTrue((folder / "checkpoint/replaced-4").exists())
        (folder / "checkpoint/replaced-4").chmod(0o700)

    def test_what_cannot_be_deleted_is_told_at_every_start(self):
        folder = self.run_with_checkpoints()
        left = folder / "checkpoint/deleting-1"
        left.mkdir()
        (left / "__0_0.distcp").write_text("half")
        left.chmod(0o500)
        for steps in (6, 8):
            self.assertRegex(self.complete(1, folder, steps), r"WARNING - cannot delete \S+deleting-1/__0_0.distcp: Permission")
        left.chmod(0o700)
        self.complete(1, folder, 10)
        self.assertFalse(left.exists())


class Unread(SavedRunTest):
    def test_one_that_the_medium_does_not_give_is_passed_over_and_kept(self):
        folder = self.run_with_checkpoints()
        newest = folder / "checkpoint/step-4"
        file = newest / "__0_0.distcp"
        file.rename(newest / "away")
        file.mkdir()  # reading it is an error of the system's, and no damage
        text = self.complete(2, folder, 3, "--checkpoint.interval=1000", "--checkpoint.load_only")
        self.assertRegex(text, r"LOAD: step 2 from .*; step 4 is unreadable: .*Is a directory")
        self.assertTrue(newest.exists(), "it may be there at the next start")
        before = self.tree(newest)
        text = self.complete(2, folder, 8, "--checkpoint.keep_latest_k=2")
        self.assertIn("later checkpoints (4) were renamed to replaced-4", text)
        self.assertEqual(self.tree(folder / "checkpoint/replaced-4"), before)
        self.assertEqual(self.checkpoints(folder), [6, 8])

    def test_a_rank_that_sees_another_disk_makes_none_a_damaged_one(self):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
            self.skipTest("no right to a view of its own of the file systems")
        folder = self.run_with_checkpoints()
        other = self.folder / "other"
        shutil.copytree(folder / "checkpoint/step-2", other / "step-2")
        before = self.tree(folder / "checkpoint")
        words = (*SAVING, *parallel(dp_shard=2), f"--job.dump_folder={folder}", "--training.steps=6")
        port, usual = free_port(), self.program
        zero = self.train_by_hand(0, 2, port, *words)
        see = f'mount --bind {other} {folder}/checkpoint && exec "$0" "$@"'
        wrapper = self.write("elsewhere", f"#!/bin/sh\nexec unshare --mount sh -c '{see}' {usual} \"$@\"\n")
        wrapper.chmod(0o700)
        self.program = str(wrapper)
        one = self.train_by_hand(1, 2, port, *words)
        codes = {zero.end(), one.end()}
        self.assertIn(STORAGE, codes, zero.text() + one.text())
        self.assertLessEqual(codes, {STORAGE, PEER_FAILURE}, "one may hear of the other's failure before it comes to its own")
        self.assertRegex(zero.text(), r"LOAD: step 2 from .*; step 4 is unreadable: cannot see what rank 0 sees: \S+step-4/"
                                      r"\.metadata: No such file or directory \(rank 1\)")
        self.assertIn("the same one for all", zero.text() + one.text())
        self.assertEqual(self.tree(folder / "checkpoint"), before)


if __name__ == "__main__":
    unittest.main()
