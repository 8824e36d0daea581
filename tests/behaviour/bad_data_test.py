"""A corpus or a tokenizer that cannot be used ends the run with exit code 65, its name and the remedy; what the policy
allows to be left out is counted and shown."""

from __future__ import annotations

import json
import os
import unittest

from program import BAD_CONFIG, BAD_DATA, ROOT, BehaviourTest

STORY = "Once upon a time a fox lost its hat and went to look for it under the bridge. "
TOKENIZER = ROOT / "configs" / "tokenizers" / "stories.model"


def record(text: str, field: str = "text") -> str:
    return json.dumps({field: text})


class BadCorpus(BehaviourTest):
    def refuse(self, corpus, says: list[str], *words, **options):
        return self.refused(
            BAD_DATA, says, "--training.dataset=text", f"--training.dataset_path={corpus}", *words, **options
        )

    def test_a_corpus_that_is_not_there_is_named_before_the_model_is_built(self):
        run = self.refuse(self.folder / "none.txt", ["none.txt", "does not exist", "name a file or folder"])
        self.assertEqual(run.messages(), [])

    def test_a_dataset_without_a_path_asks_for_one(self):
        self.refused(BAD_CONFIG, ["needs training.dataset_path", "name a .txt or"], "--training.dataset=text")
        self.refused(BAD_DATA, ["is not downloaded", "point training.dataset_path at"], "--training.dataset=c4")

    def test_an_empty_folder_or_file_is_named(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refuse(empty, [str(empty), "holds no files", "Give a .txt, .jsonl"])
        self.refuse(self.write("empty.txt", ""), ["empty.txt: the file is empty", "Give a .txt, .jsonl"])

    def test_a_file_of_blank_lines_only_holds_no_document(self):
        self.refuse(self.write("blank.jsonl", "\n\n  \n"), ["blank.jsonl", "no document", "Give a training.dataset_path"])

    def test_a_file_of_another_kind_is_named_with_its_kind(self):
        self.refuse(self.write("corpus.parquet", "PAR1"), ["Parquet files are not read", "parquet_to_jsonl.py"])

    def test_a_pipe_is_refused_rather_than_waited_for(self):
        pipe = self.folder / "pipe.txt"
        os.mkfifo(pipe)
        self.refuse(pipe, [str(pipe)])

    @unittest.skipIf(os.geteuid() == 0, "the superuser may read everything")
    def test_a_file_without_read_permission_is_named(self):
        secret = self.write("secret.txt", STORY)
        secret.chmod(0)
        self.refuse(secret, ["secret.txt", "Permission denied"])

    def test_a_corpus_shorter_than_a_batch_is_refused_with_both_numbers(self):
        short = self.write("short.txt", STORY)
        words = ("--training.local_batch_size=2", "--training.seq_len=64")
        self.refuse(short, ["short.txt holds", "2 × 65 = 130", "Give more text, or lower"], *words)

    def test_a_bad_record_ends_the_run_with_file_and_line(self):
        good = record(STORY)
        for line, says in (
            ('{"text": "cut', "this line is no JSON"),
            ("[1, 2]", 'not an object with the field "text"'),
            (record(STORY, "body"), 'has no field "text"'),
            ('{"text": 5}', 'the field "text" of this record is no string'),
        ):
            with self.subTest(line):
                corpus = self.write("records.jsonl", "\n".join([good, "", line, good]) + "\n")
                self.refuse(corpus, ["records.jsonl:3: ", says, 'data.bad_record = "skip"'])

    def test_skipped_records_are_counted_and_shown(self):
        records = [record(STORY * 5) for _ in range(12)]
        records[1:1] = ["{", record(STORY, "body"), "[]"]
        corpus = self.write("records.jsonl", "\n".join(records))
        run = self.train("--training.dataset=text", f"--training.dataset_path={corpus}", "--data.bad_record=skip")
        first = f"{corpus}:2: this line is no JSON; such records are skipped and counted"
        self.assertIn(first, run.messages("WARNING"))
        self.assertEqual(run.training("data_bad_records")[-1], 3)
        self.assertTrue(any("bad records: 3" in line for line in run.messages("INFO")))
        self.assertIn("3 bad records of the corpus were left out", run.messages("WARNING"))

    def test_a_corpus_of_bad_records_only_is_an_error_even_when_they_may_be_skipped(self):
        corpus = self.write("records.jsonl", "{\n[]\n")
        self.refuse(corpus, ["all 2 records were skipped as bad"], "--data.bad_record=skip")

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


class BadTokenizer(BehaviourTest):
    def refuse(self, path, says: list[str]) -> None:
        self.refused(BAD_DATA, says, f"--model.tokenizer_path={path}")

    def test_a_tokenizer_that_is_not_there_is_named(self):
        self.refuse(self.folder / "none.model", ["none.model", "does not exist", "name a tokenizer file, a folder that holds one"])

    def test_a_folder_without_a_tokenizer_says_what_it_needs(self):
        self.refuse(self.folder, [str(self.folder), "no tokenizer.json, tokenizer.model or vocab.json", "titan_train tokenizer train"])

    def test_a_damaged_tokenizer_is_refused_with_its_line(self):
        whole = TOKENIZER.read_bytes()
        lines = whole.splitlines()
        for name, content in (
            ("empty", b""),
            ("binary", bytes(range(256)) * 4),
            ("text", b"this is no tokenizer\n"),
            ("base64", b"\n".join([*lines[:10], b"!!!! 10", *lines[11:]])),
            ("rank", b"\n".join([*lines[:10], lines[10].split()[0] + b" 99999", *lines[11:]])),
            ("hole", b"\n".join([*lines[:10], *lines[11:]])),
        ):
            with self.subTest(name):
                self.refuse(self.write(f"{name}.model", content), [f"{name}.model", "get it again"])


class BadValidationSet(BehaviourTest):
    def test_a_validation_set_that_cannot_be_used_is_named_before_training_starts(self):
        words = ("--validation.enable", "--validation.dataset=text", "--validation.seq_len=64")
        missing = self.folder / "none.txt"
        run = self.refused(BAD_DATA, [str(missing), "does not exist"], *words, f"--validation.dataset_path={missing}")
        self.assertEqual(run.messages(), [])

    def test_a_validation_set_shorter_than_a_sequence_is_refused(self):
        words = ("--validation.enable", "--validation.dataset=text", "--validation.seq_len=64")
        short = self.write("short.txt", "Too short.")
        run = self.refused(BAD_DATA, ["short.txt holds", "Give more text"], *words, f"--validation.dataset_path={short}")
        self.assertFalse(any(line.startswith("step: ") for line in run.messages()), run.output)
        for steps in (-1, 2):  # the whole set, or so many batches of a set that is read again and again
            more = (f"--validation.dataset_path={short}", f"--validation.steps={steps}")
            errors = self.refused(BAD_DATA, ["lower validation.seq_len"], *words, *more).errors
            self.assertNotIn("training.", errors)

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
