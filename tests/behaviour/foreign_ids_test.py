"""Ids that other programs wrote, with these programs' own writers where there are packages of them: titan_train shows the
ids that were written, and trains on them as on its own file of the same documents."""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy
from program import BAD_DATA, OK, BehaviourTest

VOCABULARY, END = 50257, 50256
CHANCE = random.Random(3)
# Every document ends with GPT-2's end of text; 60 of them are 2,930 ids.
DOCUMENTS = [[CHANCE.randrange(2000) for _ in range(CHANCE.randrange(1, 100))] + [END] for _ in range(60)]
TOKENS = sum(map(len, DOCUMENTS))
# llm.c's begin with it.
BEGUN = [[END, *document[:-1]] for document in DOCUMENTS]
# In processes of their own: these packages bring much along.
WRITE_MEGATRON = """
import json, sys
import numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
documents, found = json.load(sys.stdin), []
for name in sys.argv[2:]:
    prefix = sys.argv[1] + "/" + name
    dtype, pieces = name.split("_")[:2]
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=getattr(numpy, dtype))
    for document in documents:
        parts = [len(part) for part in numpy.array_split(document, int(pieces))]
        builder.add_document(torch.tensor(document), parts)
    builder.finalize(prefix + ".idx")
    theirs = IndexedDataset(prefix)
    found.append([len(theirs), len(theirs.document_indices) - 1])
json.dump(found, sys.stdout)
"""
WRITE_DATATROVE = """
import json, sys
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
folder, name, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
file = TokenizedFile(folder, name, save_index=True, tokenizer_name_or_path="gpt2", save_final_metadata=True,
                     token_size=width)
for document in json.load(sys.stdin):
    file.write(document, None)
file.close()
"""
# datatrove's step for Megatron, with a tokenizer whose words are numbers: the text "7 5" has the ids 7 and 5.
WRITE_MEGATRON_OF_DATATROVE = """
import json, sys
from datatrove.data import Document
from datatrove.pipeline.tokens import MegatronDocumentTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
folder, size = sys.argv[1], int(sys.argv[2])
tokenizer = Tokenizer(models.WordLevel({str(id): id for id in range(size)}, unk_token="0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.save(folder + "/tokenizer.json")
documents = json.load(sys.stdin)
texts = (Document(text=" ".join(map(str, ids[:-1])), id=str(i)) for i, ids in enumerate(documents))
step = MegatronDocumentTokenizer(folder, save_filename=str(size), tokenizer_name_or_path=folder + "/tokenizer.json",
                                 eos_token=str(documents[0][-1]))
step.run(texts)
"""


def python(script: str, *words) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, *map(str, words)], input=json.dumps(DOCUMENTS),
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return done.stdout


@functools.cache
def megatron_corpora() -> tempfile.TemporaryDirectory:
    """Written once, since Megatron takes long to import. Named by type and sequences of a document."""
    folder = tempfile.TemporaryDirectory(prefix="titan-megatron-")
    names = ("int32_1_text_document", "int64_1_text_document", "uint16_1_text_document", "int32_3_text_document")
    found = json.loads(python(WRITE_MEGATRON, folder.name, *names))
    count = len(DOCUMENTS)
    if found != [[count, count], [count, count], [count, count], [3 * count, count]]:
        raise AssertionError(f"Megatron reads other sequences and documents than it wrote: {found}")
    return folder


def joined(documents: list[list[int]]) -> list[int]:
    return [id for document in documents for id in document]


class ForeignIds(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.own = self.tokenized("own", DOCUMENTS, "--eos", END)

    def tokenized(self, name: str, documents: list[list[int]], *words) -> pathlib.Path:
        """This program's own file of these documents."""
        lines = "".join(json.dumps({"ids": document}) + "\n" for document in documents)
        output = self.folder / f"{name}.bin"
        given = ("--ids", "ids", "--vocab-size", VOCABULARY, *words)
        corpus = ("--dataset-path", self.write(f"{name}.jsonl", lines), "--output", output)
        self.expect(self.titan("data", "tokenize", *given, *corpus), OK)
        return output

    @staticmethod
    def megatron(dtype: str = "int32", pieces: int = 1) -> pathlib.Path:
        """Of Megatron's own writer: the corpus by its usual name, which has no extension."""
        return pathlib.Path(megatron_corpora().name) / f"{dtype}_{pieces}_text_document"

    def datatrove(self, width: int = 2) -> pathlib.Path:
        python(WRITE_DATATROVE, self.folder, f"{width}.ds", width)
        return self.folder / f"{width}.ds"

    def llm_c(self) -> pathlib.Path:
        header = struct.pack("<256i", 20240520, 1, TOKENS, *[0] * 253)
        return self.write("llm_c.bin", header + numpy.array(joined(BEGUN), numpy.uint16).tobytes())

    def vocabulary_of(self, size: int) -> pathlib.Path:
        """A tokenizer with so many ids."""
        path = self.folder / "small.bin"
        corpus = self.write("one.jsonl", '{"ids": [1]}\n')
        words = ("--ids", "ids", "--vocab-size", size, "--eos", 3, "--dataset-path", corpus, "--output", path)
        self.expect(self.titan("data", "tokenize", *words), OK)
        return path

    def nanogpt(self) -> pathlib.Path:
        path = self.folder / "train.bin"
        numpy.array(joined(DOCUMENTS), numpy.uint16).tofile(path)
        return path

    def data(self, command: str, path: pathlib.Path, *words) -> str:
        run = self.titan("data", command, "--dataset-path", path, *words)
        self.expect(run, OK)
        return run.output

    def expect_shown(self, path: pathlib.Path, dtype: str, *words, documents: bool = True, written=None) -> None:
        """info, stats and peek say what was written; `documents`: info knows their number."""
        written = written or DOCUMENTS
        for command in ("info", "stats"):
            shown = self.data(command, path, *words)
            if documents or command == "stats":
                self.assertRegex(shown, rf"documents +{len(DOCUMENTS)}\n")
            self.assertRegex(shown, rf"tokens +{TOKENS:,} of {dtype}\n")
        self.assertIn(f"largest id    50,256 of {TOKENS:,} looked at", self.data("info", path, *words))
        given = ("--tokenizer", self.own, "--documents", len(DOCUMENTS))
        peek = self.data("peek", path, *given, *(word for word in words if word == "--nanogpt"))
        lines = [line for line in peek.splitlines() if re.match(r'  \d+ "', line)]
        shown = [list(map(int, re.findall(r'(\d+) "\d+"', line))) for line in lines]
        self.assertEqual(shown, [document[:32] for document in written])

    def options(self, path: pathlib.Path, dataset: str = "text") -> tuple:
        data = (f"--training.dataset={dataset}", f"--training.dataset_path={path}")
        model = (f"--model.tokenizer_path={self.own}", f"--model.override.vocab_size={VOCABULARY}")
        return (*data, *model, "--lr_scheduler.total_steps=100")

    def expect_same_training(self, path: pathlib.Path, dataset: str = "text") -> None:
        own = self.train(*self.options(self.own), steps=4).training("loss")
        self.assertEqual(self.train(*self.options(path, dataset), steps=4).training("loss"), own)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not there")
    def test_megatrons_files_of_every_type_are_shown_as_they_were_written(self):
        for dtype in ("int32", "int64", "uint16"):
            with self.subTest(dtype):
                self.expect_shown(self.megatron(dtype), dtype)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not there")
    def test_documents_of_several_entries_are_whole(self):
        prefix = self.megatron("int32", 3)
        self.assertRegex(self.data("info", prefix), rf"entries +{3 * len(DOCUMENTS)}\n")
        self.expect_shown(prefix, "int32")
        self.expect_same_training(prefix)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not there")
    def test_validation_on_a_glob_of_trainings_file_reads_the_second_part_and_says_so(self):
        prefix = self.megatron()
        same, other = prefix.with_name("int32_1_*.bin"), self.megatron("uint16")
        order = ("--data.order=megatron", "--data.megatron_split=8,2")
        validation = ("--validation.enable", "--validation.dataset=text", "--validation.steps=1", "--validation.freq=2")
        for path, reads in ((same, r"the second part of data\.megatron_split of .* entries 48 to 59, "),
                            (other, r"all entries of .* entries 0 to 59, ")):  # fmt: skip
            with self.subTest(path.name):
                run = self.train(*self.options(prefix), *order, *validation, f"--validation.dataset_path={path}",
                                 "--validation.seq_len=64", "--validation.local_batch_size=2", steps=2)  # fmt: skip
                said = [text for text in run.messages("INFO") if text.startswith("Validation reads")]
                self.assertEqual(len(said), 1)
                self.assertRegex(said[0], rf"^Validation reads {reads}")
                computed = r"Megatron's order: \d+ samples in 1 epoch, computed in \d+\.\d s"
                self.assertEqual(len([text for text in run.messages("INFO") if re.fullmatch(computed, text)]), 1)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not there")
    def test_a_resume_with_other_steps_names_them_where_the_order_is_another(self):
        data = (*self.options(self.megatron()), "--data.order=megatron", "--data.megatron_split=1")
        saving = ("--checkpoint.enable", "--checkpoint.interval=2", "--checkpoint.last_save_model_only=false")
        run = self.train(*data, *saving, steps=2)
        again = self.train(*data, *saving, steps=90, folder=run.folder, exit_code=BAD_DATA)
        said = again.output + again.errors
        self.assertIn("training.steps and training.global_batch_size say how many of Megatron's samples", said)
        self.assertRegex(said, r"in the order of 1 epoch, and the order is now that of \d+ epochs")

    @unittest.skipUnless(importlib.util.find_spec("datatrove"), "datatrove is not there")
    def test_datatroves_files_are_shown_as_they_were_written_and_trained_on(self):
        for width, dtype in ((2, "uint16"), (4, "uint32")):
            with self.subTest(width):
                path = self.datatrove(width)
                self.expect_shown(path, dtype)
                self.assertRegex(self.data("info", path), r"vocabulary +gpt2\n")
                self.expect_same_training(path)

    @unittest.skipUnless(importlib.util.find_spec("datatrove"), "datatrove is not there")
    def test_datatroves_files_for_megatron_are_shown_as_they_were_written_and_trained_on(self):
        for size, dtype in ((VOCABULARY, "uint16"), (70_000, "int32")):
            with self.subTest(dtype):
                python(WRITE_MEGATRON_OF_DATATROVE, self.folder, size)
                prefix = self.folder / f"{size}_00000_tokens"
                self.expect_shown(prefix, dtype)
                self.expect_same_training(prefix)

    def test_files_of_llm_c_are_shown_and_trained_on(self):
        self.own = self.tokenized("begun", BEGUN, "--bos", END)
        self.expect_shown(self.llm_c(), "uint16", documents=False, written=BEGUN)
        self.expect_same_training(self.llm_c())

    def test_files_of_nanogpt_are_shown_and_trained_on(self):
        self.expect_shown(self.nanogpt(), "uint16", "--nanogpt", "--tokenizer", self.own, documents=False)
        self.expect_same_training(self.nanogpt(), "nanogpt")

    def test_a_resumed_run_reads_the_next_batch_and_a_shuffled_one_too(self):
        saving = ("--checkpoint.enable", "--checkpoint.interval=3", "--checkpoint.last_save_model_only=false")
        for shuffle in ("false", "true"):
            data = (*self.options(self.nanogpt(), "nanogpt"), f"--data.shuffle={shuffle}")
            whole = self.train(*data, steps=6).training("loss")
            run = self.train(*data, *saving, steps=3)
            self.train(*data, *saving, steps=6, folder=run.folder)
            self.assertEqual(run.training("loss")[-3:], whole[-3:])

    def test_ids_that_the_tokenizer_does_not_have_end_the_run_before_the_first_step(self):
        small = self.vocabulary_of(2000)
        run = self.refused(
            BAD_DATA,
            ["train.bin holds the id 50256", "this run's tokenizer has 2,000 ids", "model.tokenizer_path"],
            *self.options(self.nanogpt(), "nanogpt"),
            f"--model.tokenizer_path={small}",
        )
        self.assertFalse((run.folder / "metrics.jsonl").exists() and run.training("loss"))

    def test_stats_with_a_tokenizer_compare_every_id_and_runs_a_sample(self):
        small = self.vocabulary_of(2000)
        path = self.folder / "large.ds"
        ids = numpy.zeros(20_000_000, numpy.uint16)
        numpy.array([len(ids)], numpy.uint64).tofile(self.folder / "large.ds.index")
        ids.tofile(path)
        self.assertIn("every id is in the tokenizer's vocabulary", self.data("stats", path, "--tokenizer", small))
        ids[[140_000, 150_000]] = 2000  # between the first two blocks of the sample
        ids.tofile(path)
        self.assertIn("largest id    0 of", self.data("info", path, "--tokenizer", small))
        run = self.titan("data", "stats", "--dataset-path", path, "--tokenizer", small)
        self.expect(run, BAD_DATA)
        self.assertIn("large.ds holds the id 2000 (its id 140,000, counted from 0)", run.errors)
        self.assertIn("That is the first of 2 such ids among 20,000,000. Name the tokenizer", run.errors)
        self.assertIn("in --tokenizer", run.errors)

    def test_a_file_without_a_header_is_not_read_by_chance(self):
        says = ["it has no index beside it", 'training.dataset = "nanogpt"']
        self.refused(BAD_DATA, says, *self.options(self.nanogpt()))


if __name__ == "__main__":
    unittest.main()
