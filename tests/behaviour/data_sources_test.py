"""Sources, orders and packing as a user meets them: the same text gives the same run whatever form it has, documents do
not see each other, what is bad is named, and a run resumes where it, or torchtitan, had been."""

from __future__ import annotations

import gzip
import json
import pathlib
import pickle
import random
import signal
import subprocess
import time
import unittest

import torch
import torch.distributed.checkpoint as dcp
import zstandard
from checkpoint_runs import CheckpointTest, parallel
from program import BAD_CONFIG, BAD_DATA, CORPORA, OK, ROOT, BehaviourTest
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import tiktoken_reference  # noqa: E402, I001  (program says where it lies)

TOKENIZER = ROOT / "configs" / "tokenizers" / "stories.model"
WORDS = "once upon a time there was fox bear hat river stone lost found and went to the under bridge said old".split()


def texts(count: int, seed: int = 1, longest: int = 60) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, longest))) for _ in range(count)]


def records(documents: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in documents)


class SourcesTest(BehaviourTest):
    def tokenize(self, corpus: pathlib.Path, output: pathlib.Path, *words, code: int = OK):
        run = self.titan("data", "tokenize", "--tokenizer", TOKENIZER, "--dataset-path", corpus, "--output", output, *words)
        self.expect(run, code)
        return run

    def losses(self, corpus: pathlib.Path, *words, steps: int = 3) -> list[float]:
        words = ("--training.dataset=text", f"--training.dataset_path={corpus}", *words)
        return self.train(*words, steps=steps).training("loss")


class Forms(SourcesTest):
    def test_the_same_text_trains_to_the_same_bits_whatever_form_it_has(self):
        content = records(texts(300)).encode()
        plain = self.write("a.jsonl", content)
        expected = self.losses(plain)
        self.tokenize(plain, self.folder / "a.bin")
        gz = self.write("b.jsonl.gz", gzip.compress(content))
        zst = self.write("c.jsonl.zst", zstandard.compress(content))
        for form in (gz, zst, self.folder / "a.bin"):
            with self.subTest(form.name):
                self.assertEqual(self.losses(form), expected)

    def test_a_killed_tokenization_goes_on_and_gives_the_same_bytes(self):
        corpus = self.write("a.jsonl", records(texts(60_000)))
        self.tokenize(corpus, self.folder / "whole.bin")
        words = [self.program, "data", "tokenize", "--tokenizer", TOKENIZER, "--dataset-path", corpus, "--threads", "1"]
        output = self.folder / "out.bin"
        for _ in range(3):
            run = subprocess.Popen([*map(str, words), "--output", str(output)], stdout=subprocess.DEVNULL, cwd=ROOT)
            part = self.folder / "out.bin.part"
            while run.poll() is None and not (part.exists() and part.stat().st_size > 100_000):
                time.sleep(0.001)
            run.send_signal(signal.SIGKILL)
            run.wait()
        self.tokenize(corpus, output)
        self.assertEqual(output.read_bytes(), (self.folder / "whole.bin").read_bytes())
        index = pathlib.Path(f"{output}.idx")
        self.assertEqual(index.read_bytes(), (self.folder / "whole.bin.idx").read_bytes())

    def test_of_two_tokenizations_into_one_file_one_is_refused_and_the_file_is_whole(self):
        corpus = self.write("a.jsonl", records(texts(60_000)))
        self.tokenize(corpus, self.folder / "whole.bin")
        output, part = self.folder / "out.bin", self.folder / "out.bin.part"
        words = ["data", "tokenize", "--tokenizer", TOKENIZER, "--dataset-path", corpus, "--output", output]
        first = self.open_program([self.program, *map(str, words)], stdout=subprocess.DEVNULL)
        self.wait_until(part.exists, "the first one's file")
        first.send_signal(signal.SIGSTOP)
        for overwrite in ([], ["--overwrite"]):
            second = self.titan(*words, *overwrite)
            self.expect(second, BAD_CONFIG)
            self.assertIn(f"another titan_train is writing it: process {first.pid} on ", second.errors)
        first.send_signal(signal.SIGCONT)
        self.assertEqual(first.wait(timeout=120), OK)
        for ending in ("", ".idx"):
            whole = pathlib.Path(f"{self.folder / 'whole.bin'}{ending}")
            self.assertEqual(pathlib.Path(f"{output}{ending}").read_bytes(), whole.read_bytes())

    def test_stats_and_peek_tell_what_a_corpus_holds(self):
        corpus = self.write("a.jsonl", records(texts(50)))
        stats = self.titan("data", "stats", "--dataset-path", corpus, "--tokenizer", TOKENIZER)
        self.expect(stats, OK)
        self.assertRegex(stats.output, r"documents +50\n")
        peek = self.titan("data", "peek", "--dataset-path", corpus, "--tokenizer", TOKENIZER, "--documents", "2")
        self.expect(peek, OK)
        self.assertIn("a.jsonl:2 (document 1, ", peek.output)
        self.assertIn('1792 "<|begin_of_text|>"', peek.output)

    def test_a_token_file_that_is_written_to_during_training_ends_the_run_with_its_name(self):
        source, corpus = self.write("a.jsonl", records(texts(300))), self.folder / "a.bin"
        self.tokenize(source, corpus)
        ids = corpus.read_bytes()
        for name, content in (("ids of the vocabulary", ids[2:] + ids[:2]), ("others", b"\xff" * len(ids))):
            with self.subTest(name), open(self.folder / "printed", "wb") as printed:
                corpus.write_bytes(ids)
                folder = self.fresh_folder()
                flags = ["--training.steps=1000000", "--training.dataset=text", f"--training.dataset_path={corpus}"]
                process = self.open_program(self.command(*flags, folder=folder), stdout=printed, stderr=printed)
                metrics = folder / "metrics.jsonl"
                self.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first step")
                with open(corpus, "r+b") as file:
                    file.write(content)
                process.wait(timeout=120)
                said = (self.folder / "printed").read_text()
                self.assertEqual(process.returncode, BAD_DATA, said)
                self.assertRegex(said, r"token file .*a\.bin: .*written to while it was read")


class Orders(SourcesTest):
    def mixture(self, *sources: tuple) -> pathlib.Path:
        """A config that mixes these files by these weights."""
        tables = (f'[[data.mixture]]\npath = "{path}"\nweight = {weight}\n' for path, weight in sources)
        return self.config_with("\n".join(tables))

    def test_shuffling_changes_the_order_by_its_seed_alone(self):
        corpus = self.write("a.jsonl", records(texts(300)))
        plain = self.losses(corpus)
        first, again, other = (self.losses(corpus, "--data.shuffle", f"--data.shuffle_seed={s}") for s in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertEqual(len({plain[0], first[0], other[0]}), 3)

    def test_a_mixture_reads_every_source_by_its_weight(self):
        self.write("a.jsonl", records(["alpha " * 200] * 40))
        self.write("b.jsonl", records(["beta " * 200] * 40))
        config = self.mixture((self.folder / "a.jsonl", 0.75), (self.folder / "b.jsonl", 0.25))
        words = ("--training.dataset=mixture", "--training.local_batch_size=8", "--debug.dump_steps=1")
        run = self.train(*words, config=config, steps=1)
        alpha = tiktoken_reference.encode(tiktoken_reference.load(TOKENIZER), " alpha alpha")
        rows = [set(row.tolist()) >= set(alpha[1:]) for row in run.dump().tokens]
        self.assertEqual(sum(rows), 6, rows)

    def test_a_run_that_goes_on_with_other_weights_of_a_mixture_is_told_so(self):
        corpora = [self.write(name, records(texts(300, seed))) for seed, name in enumerate(("a.jsonl", "b.jsonl"))]
        words = ("--training.dataset=mixture", "--checkpoint.enable", "--checkpoint.last_save_model_only=false")
        folder = self.fresh_folder()
        for steps, (weights, code) in enumerate((((0.7, 0.3), OK), ((7, 3), OK), ((6, 4), BAD_CONFIG)), start=2):
            config = self.mixture(*zip(corpora, weights))
            run = self.train(*words, config=config, steps=steps, folder=folder, exit_code=code)
        self.assertIn("data.mixture weights = [7,3], and this run has [3,2]", run.errors)


class Documents(SourcesTest):
    def test_changing_one_document_leaves_the_logits_of_the_next_bit_equal(self):
        words = ("--model.flavor=debugmodel_flex_attn", "--debug.dump_steps=1", "--debug.dump_logits",
                 "--data.packing=document", "--training.local_batch_size=1", "--training.seq_len=256")
        encoding = tiktoken_reference.load(TOKENIZER)
        first, changed = "the fox lost the hat", "the bear found the hat"
        lengths = {len(tiktoken_reference.encode(encoding, text)) for text in (first, changed)}
        self.assertEqual(len(lengths), 1)
        second = records(["a second story that is told again and again " * 5] * 20)
        dumps = []
        for text in (first, changed):
            corpus = self.write("a.jsonl", records([text]) + second)
            run = self.train(*words, "--training.dataset=text", f"--training.dataset_path={corpus}", steps=1)
            dumps.append(run.dump())
        begins = lengths.pop() + 2  # between begin-of-text and end-of-text
        one, other = (dump.logits[0] for dump in dumps)
        self.assertFalse(one[:begins].equal(other[:begins]))
        self.assertTrue(one[begins:].equal(other[begins:]))
        self.assertEqual(dumps[0].labels[0, begins - 1].item(), -100)


class Bad(SourcesTest):
    def refuse(self, corpus, says: list[str], *words, **options):
        return self.refused(
            BAD_DATA, says, "--training.dataset=text", f"--training.dataset_path={corpus}", *words, **options
        )

    def test_packed_files_that_are_cut_off_are_named_with_the_place(self):
        content = records(texts(3000)).encode()
        packed = gzip.compress(content)
        self.refuse(self.write("a.jsonl.gz", packed[: len(packed) // 2]), ["a.jsonl.gz", "gzip data are cut off (at byte"],
                    "--training.steps=1000")
        packed = zstandard.compress(content)
        self.refuse(self.write("b.jsonl.zst", packed[: len(packed) // 2]), ["zstd data are cut off (at byte"],
                    "--training.steps=1000")

    def test_ids_that_do_not_fit_or_are_damaged_are_named_with_the_way_out(self):
        corpus = self.write("a.jsonl", records(texts(300)))
        output = self.folder / "a.bin"
        self.tokenize(corpus, output)
        other = self.folder / "other.model"
        made = self.titan("tokenizer", "train", "--dataset-path", CORPORA / "stories.jsonl", "--vocab-size", 600, "--output", other)
        self.expect(made, OK)
        self.refuse(output, ["another vocabulary", "2048", "600", "model.tokenizer_path"], f"--model.tokenizer_path={other}")
        index = pathlib.Path(f"{output}.idx")
        whole = index.read_bytes()
        index.write_bytes(whole[:-9])
        self.refuse(output, ["a.bin.idx is damaged or cut off", "titan_train data tokenize"])
        index.write_bytes(whole)
        ids = bytearray(output.read_bytes())
        ids[100] ^= 1
        output.write_bytes(ids)
        self.refuse(output, ["a.bin", "are damaged: their checksum is wrong"])


class Split(CheckpointTest):
    """data.split = "upstream": every rank has a position of its own."""

    def corpus(self) -> tuple:
        path = self.write("a.jsonl", records(texts(2000)))
        return ("--training.dataset=text", f"--training.dataset_path={path}", "--data.split=upstream")

    def test_a_killed_run_goes_on_with_as_many_ranks_and_no_other_number(self):
        words = (*parallel(dp_shard=2), *self.corpus())
        whole, broken = self.folder / "whole", self.folder / "broken"
        text, step = self.kill_after(2, broken, 4, *words)
        self.assertIn("can be resumed with 2 of them only", text)
        self.complete(2, broken, step + 4, *words)
        self.complete(2, whole, step + 4, *words)
        self.assertEqual(self.curve(broken), self.curve(whole))
        self.expect_same_checkpoint(broken, whole, step + 4)
        text = self.complete(1, broken, step + 6, *parallel(), *self.corpus(), code=BAD_CONFIG)
        self.assertIn("by 2 data-parallel ranks, each its own part", text)
        self.assertIn("checkpoint.exclude_from_loading", text)

    def torchtitans(self, documents: list[str], chunks: int, length: int) -> dict:
        """The state of torchtitan's loader, inside that of the stateful loader, after so many chunks."""
        encoding = tiktoken_reference.load(TOKENIZER)
        buffer, samples = [], 0
        for _ in range(chunks):
            while len(buffer) < length + 1:
                buffer += [1792, *tiktoken_reference.encode(encoding, documents[samples]), 1793]
                samples += 1
            del buffer[: length + 1]
        dataset = {"token_buffer": buffer, "sample_idx": samples}
        return {
            "_sampler_iter_state": None, "_sampler_iter_yielded": chunks, "_num_yielded": chunks,
            "_IterableDataset_len_called": None, "_shared_seed": None, "dataset_state": dataset, "_iterator_finished": False,
            "fetcher_state": {"dataset_iter_state": None, "fetcher_ended": False},
        }

    def as_torchtitan_saves(self, folder: pathlib.Path, step: int, positions: list[dict]) -> pathlib.Path:
        """A checkpoint of ours, written again by Python with these positions of the data."""
        file = self.folder / "state.pt"
        dcp_to_torch_save(folder / f"checkpoint/step-{step}", file)
        state = torch.load(file, weights_only=False)
        flat = {}

        def flatten(value, prefix=""):
            for key, inner in value.items():
                if isinstance(inner, dict):
                    flatten(inner, f"{prefix}{key}.")
                else:
                    flat[prefix + key] = inner

        flatten(state)
        flat = {key: value for key, value in flat.items() if not key.startswith("dataloader.")}
        flat |= {f"dataloader.dp_rank_{rank}": pickle.dumps(value) for rank, value in enumerate(positions)}
        target = self.folder / "python" / f"step-{step}"
        dcp.save(flat, checkpoint_id=target)
        return target

    def expect_to_go_on(self, ranks: int):
        documents = texts(2000)
        words = (*parallel(dp_shard=ranks), *self.corpus())
        whole, first, second = (self.folder / name for name in ("whole", "first", "second"))
        self.complete(ranks, whole, 8, *words)
        self.complete(ranks, first, 4, *words)
        positions = [self.torchtitans(documents[rank::ranks], 4 * 2, 64) for rank in range(ranks)]
        start = self.as_torchtitan_saves(first, 4, positions)
        loading = (f"--checkpoint.initial_load_path={start}", "--checkpoint.initial_load_model_only=false")
        text = self.complete(ranks, second, 8, *words, *loading)
        self.assertIn(f"the data position was restored: {positions[0]['dataset_state']['sample_idx']} documents", text)
        expected, found = self.curve(whole), self.curve(second)
        self.assertEqual([found[step][:2] for step in range(5, 9)], [expected[step][:2] for step in range(5, 9)])
        return words, loading

    def test_it_goes_on_where_torchtitan_was_on_one_rank(self):
        words, loading = self.expect_to_go_on(1)
        self.write("a.jsonl", records(texts(2000, seed=2)))  # another corpus of the same name
        text = self.complete(1, self.folder / "third", 6, *words, *loading)
        self.assertIn("could not be restored (the tokens left over are not those that this corpus", text)

    def test_it_goes_on_where_torchtitan_was_on_two_ranks(self):
        self.expect_to_go_on(2)


if __name__ == "__main__":
    unittest.main()
