"""What training leaves out of a corpus is counted and shown; what cannot be trained on at all: tests/golden/train.txt."""

from __future__ import annotations

import json
import unittest

from program import BAD_DATA, BehaviourTest

STORY = "Once upon a time a fox lost its hat and went to look for it under the bridge. "


def record(text: str, field: str = "text") -> str:
    return json.dumps({field: text})


class BadCorpus(BehaviourTest):
    def test_a_file_without_read_permission_is_named(self):
        self.give_up_rights()
        secret = self.write("secret.txt", STORY)
        secret.chmod(0)
        words = ("--training.dataset=text", f"--training.dataset_path={secret}")
        self.refused(BAD_DATA, ["secret.txt", "Permission denied"], *words)

    def test_a_folder_without_read_permission_that_a_glob_finds_is_not_read(self):
        self.give_up_rights()
        corpus = self.folder / "corpus"
        (corpus / "lost+found").mkdir(parents=True)
        (corpus / "lost+found").chmod(0)
        (corpus / "stories.jsonl").write_text("\n".join([record(STORY * 5)] * 8))
        run = self.train("--training.dataset=text", f"--training.dataset_path={corpus}/*")
        self.assertTrue(any("lost+found" in line for line in run.messages("WARNING")), run.output)

    def test_skipped_records_are_counted_and_shown(self):
        records = [record(STORY * 5) for _ in range(12)]
        records[1:1] = ["{", record(STORY, "body"), "[]"]
        corpus = self.write("records.jsonl", "\n".join(records))
        run = self.train("--training.dataset=text", f"--training.dataset_path={corpus}", "--data.bad_record=skip")
        first = f"{corpus}:2: this line is not JSON from column 2 on; such records are skipped and counted"
        self.assertIn(first, run.messages("WARNING"))
        self.assertEqual(run.training("data_bad_records")[-1], 3)
        self.assertTrue(any("bad records: 3" in line for line in run.messages("INFO")))
        self.assertIn("3 bad records of the corpus were left out", run.messages("WARNING"))

    def test_another_field_can_be_named(self):
        corpus = self.write("records.jsonl", "\n".join([record(STORY * 5, "body")] * 8))
        words = ("--training.dataset=text", f"--training.dataset_path={corpus}", "--data.text_field=body")
        self.assertEqual(len(self.train(*words).training("loss")), 2)

    def test_invalid_utf8_is_replaced_and_told(self):
        corpus = self.write("mixed.txt", (STORY.encode() + b"\xff\xfe \xc3( \xe2\x82 \x80") * 40)
        run = self.train("--training.dataset=text", f"--training.dataset_path={corpus}")
        self.assertEqual(len(run.training("loss")), 2)
        self.assertTrue(any("UTF-8" in line for line in run.messages("WARNING")), run.messages("WARNING"))

    def test_a_small_corpus_is_read_again_and_again_and_that_is_told(self):
        corpus = self.write("small.txt", STORY * 12)
        run = self.train("--training.dataset=text", f"--training.dataset_path={corpus}", steps=6)
        self.assertIn("Dataset text is being re-looped", run.messages("WARNING"))
        self.assertGreater(run.training("data_loops")[-1], 0)


class BadValidationSet(BehaviourTest):
    def test_a_small_set_is_read_again_without_a_warning(self):
        small = self.write("small.txt", STORY * 12)
        words = ("--validation.enable", "--validation.dataset=text", f"--validation.dataset_path={small}")
        for batches in (50, -1):
            run = self.train(*words, "--validation.local_batch_size=1", f"--validation.steps={batches}", steps=1)
            self.assertEqual([line for line in run.messages("WARNING") if "Dataset" in line or "validation" in line], [])
            self.assertEqual(len([line for line in run.metrics() if "validation_loss" in line]), 1)
        self.assertIn("local batch size", "\n".join(run.messages()))

    def test_records_skipped_in_a_validation_set_are_counted_and_shown_once(self):
        records = "\n".join(["{", record(STORY, "body"), *[record(STORY * 5) for _ in range(20)]])
        corpus = self.write("held_out.jsonl", records)
        words = ("--validation.enable", "--validation.dataset=text", "--validation.seq_len=64", "--validation.freq=1")
        run = self.train(*words, f"--validation.dataset_path={corpus}", "--data.bad_record=skip", "--validation.steps=-1")
        warned = [line for line in run.messages("WARNING") if "bad records were left out" in line]
        self.assertEqual(warned, ["validation: 2 bad records were left out"])


if __name__ == "__main__":
    unittest.main()
