"""Weights between titan and Hugging Face's transformers and Meta's files: the same model on both sides.

Random models of a few layers, in every shape that changes names or rows: grouped queries, tied embeddings, Llama 3.1's
and 3.2's rotary scaling.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import dump
from llama import Llama
from shapes import FLAVORS, Shape
from titan import DEBUG_CONFIG, ROOT, binary

TOLERANCE = 1e-5
VOCABULARY = 2304  # more than the debug tokenizer's


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    flavor: str
    kv_heads: int

    @property
    def shape(self) -> Shape:
        whole = FLAVORS[self.family][self.flavor]
        return whole.replace(dim=64, layers=2, heads=4, kv_heads=self.kv_heads, multiple_of=16, vocab=VOCABULARY)

    def flags(self) -> list[str]:
        sizes = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": self.kv_heads, "multiple_of": 16,
                 "vocab_size": VOCABULARY}
        return [f"--model.name={self.family}", f"--model.flavor={self.flavor}",
                *(f"--model.override.{key}={value}" for key, value in sizes.items())]


CASES = [
    Case("llama2", "debugmodel", 4),
    Case("llama3", "debugmodel", 2),
    Case("llama3_1", "debugmodel", 1),
    Case("llama3_2", "1B", 2),  # tied
]


def their_config(shape: Shape) -> transformers.LlamaConfig:
    scaling = {"rope_type": "default"}
    if shape.scaling:
        scaling = {
            "rope_type": "llama3",
            "factor": shape.scaling.factor,
            "low_freq_factor": shape.scaling.low_frequency_factor,
            "high_freq_factor": shape.scaling.high_frequency_factor,
            "original_max_position_embeddings": shape.scaling.original_context,
        }
    return transformers.LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.dim, intermediate_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, rms_norm_eps=shape.eps,
        tie_word_embeddings=shape.tied, max_position_embeddings=131072,
        rope_parameters={"rope_theta": shape.theta, **scaling}, attn_implementation="eager",
    )


def random_model(shape: Shape, seed: int = 5) -> transformers.LlamaForCausalLM:
    """Weights large enough for every layer to matter, norms not all ones."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(their_config(shape))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(1 + 0.1 * torch.randn(weight.shape) if "norm" in name else 0.1 * torch.randn(weight.shape))
    return model.eval()


def random_state(shape: Shape, seed: int = 6) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    names = Llama(shape).state_dict()
    if shape.tied:
        del names["output.weight"]
    return {name: 0.1 * torch.randn(tensor.shape) for name, tensor in names.items()}


@torch.no_grad()
def reference_logits(shape: Shape, state: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    model = Llama(shape)
    if shape.tied:
        state = {**state, "output.weight": state["tok_embeddings.weight"]}
    model.load_state_dict(state, strict=True)
    return model(tokens)


def some_tokens(shape: Shape) -> torch.Tensor:
    return torch.randint(shape.vocab, (2, 64), generator=torch.Generator().manual_seed(8))


class ConversionTest(unittest.TestCase):
    def setUp(self):
        self.program = binary()
        folder = tempfile.TemporaryDirectory(prefix="titan-convert-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        warnings.simplefilter("ignore")  # torch warns that there is no process group

    def titan(self, *words, code: int = 0) -> str:
        done = subprocess.run([self.program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def convert(self, *words, code: int = 0) -> str:
        return self.titan("convert", *words, code=code)

    def weights_in(self, checkpoint: pathlib.Path) -> dict[str, torch.Tensor]:
        """The model in a checkpoint, read by PyTorch; a checkpoint of a run holds it under "model"."""
        file = checkpoint.with_suffix(".pt")
        file.unlink(missing_ok=True)
        dcp_to_torch_save(checkpoint, file)
        state = torch.load(file, weights_only=True)
        return state.get("model", state)

    def assert_close(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        self.assertGreater(theirs.abs().max().item(), 0.1)  # a comparison of something
        self.assertLess((ours - theirs).abs().max().item(), TOLERANCE)

    def assert_same_tensors(self, found: dict, expected: dict) -> None:
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(found[name], tensor), name)


class FromHuggingFace(ConversionTest):
    def test_an_imported_model_gives_the_logits_that_transformers_gives(self):
        for case in CASES:
            with self.subTest(case=case):
                theirs = random_model(case.shape)
                source = self.folder / f"{case.family}-theirs"
                theirs.save_pretrained(source, max_shard_size="200KB")
                self.assertGreater(len(list(source.glob("*.safetensors"))), 2)
                checkpoint = self.folder / f"{case.family}-ours"
                said = self.convert("from-hf", source, checkpoint, *case.flags())
                count = 2 * 9 + (2 if case.shape.tied else 3)
                self.assertIn(f"{count}/{count} tensors, 0 missing, 0 unexpected", said)
                tokens = some_tokens(case.shape)
                with torch.no_grad():
                    expected = theirs(tokens).logits
                self.assert_close(reference_logits(case.shape, self.weights_in(checkpoint), tokens), expected)

    def test_a_published_flavor_is_recognised_by_its_config(self):
        shape = FLAVORS["llama3_1"]["debugmodel"].replace(layers=6, dim=256)
        random_model(shape).save_pretrained(self.folder / "theirs")
        said = self.convert("from-hf", self.folder / "theirs", self.folder / "ours")
        self.assertIn("llama3_1 debugmodel: 57/57 tensors, 0 missing, 0 unexpected", said)

    def test_a_tied_model_may_bring_its_second_copy_as_long_as_it_is_one(self):
        case = CASES[3]
        random_model(case.shape).save_pretrained(self.folder / "theirs")
        file = self.folder / "theirs" / "model.safetensors"
        tensors = safetensors.torch.load_file(file)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(tensors, file, {"format": "pt"})
        self.convert("from-hf", self.folder / "theirs", self.folder / "ours", *case.flags())
        tensors["lm_head.weight"][3, 4] += 1
        safetensors.torch.save_file(tensors, file, {"format": "pt"})
        said = self.convert("from-hf", self.folder / "theirs", self.folder / "other", *case.flags(), code=73)
        self.assertIn("lm_head.weight differs from model.embed_tokens.weight", said)
        self.assertFalse((self.folder / "other").exists())

    def test_what_python_reads_of_the_checkpoint_is_in_trainings_dtype(self):
        case = CASES[1]
        random_model(case.shape).to(torch.bfloat16).save_pretrained(self.folder / "theirs")
        for dtype in ("float32", "bfloat16"):
            checkpoint = self.folder / dtype
            self.convert("from-hf", self.folder / "theirs", checkpoint, *case.flags(), f"--training.dtype={dtype}")
            state = {"norm.weight": torch.zeros(64, dtype=getattr(torch, dtype))}
            dcp.load(state, checkpoint_id=checkpoint)
            theirs = safetensors.torch.load_file(self.folder / "theirs" / "model.safetensors")["model.norm.weight"]
            self.assertTrue(torch.equal(state["norm.weight"], theirs.to(getattr(torch, dtype))))


class ToHuggingFace(ConversionTest):
    def test_transformers_gives_the_logits_that_titan_gave(self):
        for case in CASES:
            with self.subTest(case=case):
                run = self.folder / f"{case.family}-run"
                self.titan(DEBUG_CONFIG, *case.flags(), f"--job.dump_folder={run}", "--training.steps=1",
                           "--training.seq_len=64", "--training.local_batch_size=2", "--debug.dump_steps=1",
                           "--debug.dump_logits=true", "--training.threads=1")
                step = dump.read(run, 1)
                dcp.save({name: tensor.contiguous() for name, tensor in step.parameters.items()},
                         checkpoint_id=run / "weights")
                target = self.folder / f"{case.family}-theirs"
                self.convert("to-hf", run / "weights", target, DEBUG_CONFIG, *case.flags(), "--shard-gigabytes=0.0003")
                self.assertGreater(len(list(target.glob("*.safetensors"))), 2)
                theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
                    target, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
                self.assertFalse(any(report.values()), report)
                with torch.no_grad():
                    self.assert_close(theirs(step.tokens).logits, step.logits)

    def test_the_round_trip_gives_every_bit_back_in_files_of_the_size_asked_for(self):
        for case in CASES:
            with self.subTest(case=case):
                model = random_model(case.shape).to(torch.bfloat16)
                source = self.folder / f"{case.family}-theirs"
                model.save_pretrained(source)
                ours, back = self.folder / f"{case.family}-ours", self.folder / f"{case.family}-back"
                self.convert("from-hf", source, ours, *case.flags())
                self.convert("to-hf", ours, back, *case.flags(), "--dtype=bfloat16", "--shard-gigabytes=0.0001")
                index = json.loads((back / "model.safetensors.index.json").read_text())
                found = {}
                for file in sorted(set(index["weight_map"].values())):
                    tensors = safetensors.torch.load_file(back / file)
                    self.assertTrue(len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= 100_000)
                    self.assertEqual({name for name, at in index["weight_map"].items() if at == file}, tensors.keys())
                    found |= tensors
                self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in found.values()))
                self.assert_same_tensors(found, safetensors.torch.load_file(source / "model.safetensors"))

    def test_config_generation_config_and_tokenizer_lie_beside_the_weights(self):
        case = CASES[2]
        tokenizer = self.folder / "tokenizer"
        tokenizer.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (tokenizer / name).write_text(json.dumps({"this is": name}))
        dcp.save(random_state(case.shape), checkpoint_id=self.folder / "ours")
        target = self.folder / "theirs"
        self.convert("to-hf", self.folder / "ours", target, *case.flags(), f"--model.tokenizer_path={tokenizer}")
        for file in tokenizer.iterdir():
            self.assertEqual((target / file.name).read_bytes(), file.read_bytes())
        config = transformers.AutoConfig.from_pretrained(target)
        expected = their_config(case.shape)
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                    "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "head_dim", "hidden_act"):
            self.assertEqual(getattr(config, key), getattr(expected, key), key)
        self.assertEqual(config.dtype, torch.float32)
        transformers.GenerationConfig.from_pretrained(target)

    def test_numbers_that_float16_cannot_hold_are_an_error(self):
        case = CASES[0]
        state = random_state(case.shape)
        state["layers.1.feed_forward.w2.weight"][5, 7] = 1e5
        dcp.save(state, checkpoint_id=self.folder / "ours")
        said = self.convert("to-hf", self.folder / "ours", self.folder / "theirs", *case.flags(), "--dtype=float16",
                            code=73)
        self.assertIn("layers.1.feed_forward.w2.weight holds numbers too large for float16; take bfloat16", said)
        self.assertEqual([entry.name for entry in self.folder.iterdir()], ["ours"])


class OtherForms(ConversionTest):
    def test_metas_files_are_joined_along_the_dimension_that_their_ranks_cut(self):
        case = CASES[1]
        state = random_state(case.shape)
        rows = ("wq", "wk", "wv", "w1", "w3", "output")
        for ranks, embedding in ((1, 0), (2, 0), (2, 1)):  # Llama 3 cuts the table's rows, Llama 2 its columns
            with self.subTest(ranks=ranks, embedding=embedding):
                source = self.folder / f"meta-{ranks}-{embedding}"
                source.mkdir()
                params = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": VOCABULARY,
                          "multiple_of": 16, "norm_eps": 1e-5, "rope_theta": 500000.0}
                (source / "params.json").write_text(json.dumps(params))
                for rank in range(ranks):
                    part = {"rope.freqs": torch.ones(8)}
                    for name, tensor in state.items():
                        cut = 0 if any(f"{row}." in name for row in rows) else None
                        cut = 1 if any(f"{column}." in name for column in ("wo", "w2")) else cut
                        cut = embedding if name.startswith("tok_embeddings") else cut
                        part[name] = tensor if cut is None else tensor.chunk(ranks, cut)[rank].clone()
                    torch.save(part, source / f"consolidated.{rank:02}.pth")
                target = self.folder / f"ours-{ranks}-{embedding}"
                said = self.convert("from-meta", source, target, *case.flags())
                self.assertIn("21/21 tensors, 0 missing, 0 unexpected", said)
                self.assert_same_tensors(self.weights_in(target), state)

    def test_a_state_dictionary_of_modules_is_read_too(self):
        case = CASES[1]
        source = self.folder / "meta"
        source.mkdir()
        (source / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}))
        model = Llama(case.shape)
        torch.save(model.state_dict(), source / "consolidated.00.pth")  # an OrderedDict with attributes
        self.convert("from-meta", source, self.folder / "ours", *case.flags())
        self.assert_same_tensors(self.weights_in(self.folder / "ours"), dict(model.state_dict()))


if __name__ == "__main__":
    unittest.main()
