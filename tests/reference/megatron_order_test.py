"""The samples of data.order = "megatron" against Megatron-LM's own datasets, id by id, and those that a run trains on
against its datasets and samplers. `megatron_samples` (tests/reference/megatron_main.cpp) is built beside titan_train.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest
import warnings

import numpy
import torch

import dump
import titan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that Apex and Transformer Engine are not there
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

SEEDS = (1234, 0, 4294967295)
LENGTH = 32


class Vocabulary:
    """What Megatron asks of a tokenizer. No id is one of padding."""

    vocab_size = 60000
    eod = 59999
    pad = -1
    unique_identifiers = {"class": "Vocabulary"}


@functools.cache
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="titan-megatron-")


@functools.cache
def corpus(kind: str) -> pathlib.Path:
    """A corpus that Megatron wrote: its prefix. Every id occurs once, unless there are too many."""
    chance = random.Random(kind)
    lengths, pieces, dtype, largest = {
        "usual": ([chance.randrange(1, 100) for _ in range(500)], 1, numpy.int32, 59998),
        # A document of the index has several entries, of which GPTDataset knows nothing.
        "pieces": ([chance.randrange(3, 100) for _ in range(200)], 3, numpy.uint16, 59998),
        "long": ([chance.randrange(LENGTH, 40 * LENGTH) for _ in range(30)], 1, numpy.int32, 59998),
        "short": ([chance.randrange(1, 4) for _ in range(2000)], 1, numpy.int32, 59998),
        "empty": ([chance.choice((0, 0, chance.randrange(1, 60))) for _ in range(600)], 1, numpy.int32, 59998),
        "tiny": ([5, 9, 3], 1, numpy.int64, 59998),
        "small ids": ([chance.randrange(1, 200) for _ in range(300)], 1, numpy.int32, 255),
    }[kind]
    prefix = pathlib.Path(folder().name) / kind.replace(" ", "_")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    ids = itertools.count()
    for length in lengths:
        document = torch.tensor([next(ids) % (largest + 1) for _ in range(length)], dtype=torch.int64)
        builder.add_document(document, [len(part) for part in numpy.array_split(document, pieces)])
    builder.finalize(f"{prefix}.idx")
    return prefix


def built(
    prefix: pathlib.Path, split: str, part: int, samples: int | None, seed: int, length: int = LENGTH
) -> GPTDataset:
    """Megatron's dataset of training (part 0) or validation (1); without a number of samples one epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GPTDatasetConfig(
            random_seed=seed, sequence_length=length, blend=([str(prefix)], None), split=split, tokenizer=Vocabulary(),
            path_to_cache=tempfile.mkdtemp(dir=folder().name), reset_position_ids=False, reset_attention_mask=False,
            eod_mask_loss=False, create_attention_mask=False,
        )  # fmt: skip
        # Of a small corpus another part may have no document; Megatron then fails, or looks for epochs without end.
        config.split_matrix = [share if i == part else None for i, share in enumerate(config.split_matrix)]
        return BlendedMegatronDatasetBuilder(GPTDataset, [samples] * 3, lambda: True, config).build()[part]


def rows(dataset: GPTDataset) -> numpy.ndarray:
    """Inputs and the last label of all samples, in order; every label counts."""
    found = []
    for i in range(len(dataset)):
        sample = dataset[i]
        if not sample["loss_mask"].bool().all() or not torch.equal(sample["tokens"][1:], sample["labels"][:-1]):
            raise AssertionError(f"sample {i} is not {len(sample['tokens'])} tokens with a label each")
        found.append(torch.cat((sample["tokens"], sample["labels"][-1:])).numpy())
    return numpy.array(found, dtype=numpy.int64)


def tokens_of(prefix: pathlib.Path, split: str, part: int) -> int:
    """Ids in one epoch of a part."""
    dataset = built(prefix, split, part, None, 0)
    return int(dataset.dataset.sequence_lengths[dataset.indices].sum())


class MegatronOrderTest(unittest.TestCase):
    def setUp(self):
        self.program = pathlib.Path(titan.binary()).with_name("megatron_samples")

    def samples(
        self, prefix: pathlib.Path, split: str, part: int, samples: int, seed: int, length: int
    ) -> numpy.ndarray:
        words = (f"{prefix}.bin", split, part, length, samples, seed)
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return numpy.frombuffer(done.stdout, numpy.int32).reshape(-1, length + 1)

    def compare(self, kind: str, split: str, part: int, samples: int, seed: int, length: int = LENGTH) -> GPTDataset:
        """`samples` 0: one epoch."""
        prefix = corpus(kind)
        theirs = built(prefix, split, part, samples or None, seed, length)
        expected = rows(theirs)
        ours = self.samples(prefix, split, part, samples, seed, length)
        with self.subTest(kind=kind, split=split, part=part, samples=samples, seed=seed, length=length):
            self.assertGreaterEqual(len(expected), max(1, samples))
            numpy.testing.assert_array_equal(ours, expected)
        return theirs

    def test_two_epochs_and_more_for_three_seeds_with_the_last_one_separate_or_not(self):
        for kind in ("usual", "pieces", "long", "short", "empty"):
            per_epoch = tokens_of(corpus(kind), "969, 30, 1", 0) // LENGTH
            separate = []
            for seed, epochs in itertools.product(SEEDS, (1.3, 2.0, 4.5)):
                theirs = self.compare(kind, "969, 30, 1", 0, int(per_epoch * epochs), seed)
                documents = len(theirs.indices)
                last = numpy.sort(theirs.document_index[-documents:])
                separate.append(numpy.array_equal(last, theirs.indices) and len(theirs.document_index) > documents)
            self.assertTrue(any(separate) and not all(separate), "both kinds of a last epoch are compared")

    def test_every_split_gives_training_and_validation_the_sequences_of_megatron(self):
        splits = ("969, 30, 1", "1,0,0", "90/10", "0.5,0.25,0.25", "33.3,33.3,33.4")
        for split, part in itertools.product(splits, (0, 1)):
            if split == "1,0,0" and part == 1:
                continue
            for kind in ("usual", "short"):
                self.compare(kind, split, part, 0, 1234)  # a whole epoch, as for a full validation
                self.compare(kind, split, part, 200, 7)

    def test_any_length_and_a_corpus_that_one_batch_repeats_many_times(self):
        for length in (1, 7, 100, 511):
            self.compare("usual", "969, 30, 1", 0, 300, 1234, length)
        for samples in (1, 2, 13, 64):
            self.compare("tiny", "1", 0, samples, 5)

    def train(self, out: pathlib.Path, ranks: int, *words: str, code: int = 0) -> str:
        """Six steps, dumped, unless `words` say otherwise; what was printed."""
        launch = ["launch", "-n", str(ranks)] if ranks > 1 else []
        usual = [
            f"--job.dump_folder={out}", "--training.dataset=text", f"--training.dataset_path={corpus('small ids')}",
            "--data.order=megatron", "--data.megatron_split=9,1", "--data.megatron_seed=99",
            f"--training.seq_len={LENGTH}", "--training.global_batch_size=8", "--training.local_batch_size=2",
            "--training.device=cpu", "--debug.dump_steps=1,2,3,4,5,6",
        ]  # fmt: skip
        steps = [] if any(word.startswith("--training.steps=") for word in words) else ["--training.steps=6"]
        done = subprocess.run([titan.binary(), *launch, titan.DEBUG_CONFIG, *usual, *steps, *words], cwd=titan.ROOT,
                              capture_output=True, text=True, timeout=titan.TIME_LIMIT_SECONDS, check=False)  # fmt: skip
        printed = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, printed)
        return printed

    def expect_batches(self, out: pathlib.Path, first: int) -> None:
        """The dumps of steps `first` to 6 hold Megatron's batches."""
        theirs = torch.from_numpy(rows(built(corpus("small ids"), "9,1", 0, 48, 99)))
        for step in range(first, 7):
            expected = theirs[(step - 1) * 8 : step * 8]
            found = dump.read(out, step)
            self.assertTrue(torch.equal(found.tokens, expected[:, :-1]), f"tokens of step {step}")
            self.assertTrue(torch.equal(found.labels, expected[:, 1:]), f"labels of step {step}")

    def test_a_run_trains_on_megatrons_batches_and_resumes_on_other_ranks(self):
        with tempfile.TemporaryDirectory() as name:
            out = pathlib.Path(name)
            self.train(out, 1, "--checkpoint.enable", "--checkpoint.interval=3")
            self.expect_batches(out, 1)
            shutil.rmtree(out / "debug")
            shutil.rmtree(out / "checkpoint" / "step-6")
            self.train(out, 2, "--checkpoint.enable", "--checkpoint.interval=3")
            self.assertFalse(dump.dump_file(out, 3).exists(), "it resumed after step 3")
            self.expect_batches(out, 4)
            # An epoch has fewer samples than 120 steps of 8: two epochs are another order, with other positions.
            shutil.rmtree(out / "checkpoint" / "step-6")
            printed = self.train(out, 1, "--checkpoint.enable", "--training.steps=120", code=65)
            self.assertIn("training.steps and training.global_batch_size say how many of Megatron's samples", printed)
            self.assertIn("saved in the order of 1 epoch, and the order is now that of 2 epochs", printed)


if __name__ == "__main__":
    unittest.main()
