"""titan_train convert on weights that Python made: what is wrong is said in one sentence, and nothing on disk has changed; all
that takes no such weights: tests/golden/convert.txt."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import unittest

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from program import DEBUG_CONFIG, OK, ROOT, SMALL, STORAGE, BehaviourTest
from quantised_weights import SETTINGS, quantised
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

SIZES = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 16, "vocab_size": 2304}
HIDDEN = 176
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": HIDDEN, "vocab_size": 2304,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}
# Runs a command and prints the most memory it ever had, in KiB.
PEAK = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=2).returncode; " \
       "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"


def flags(sizes: dict[str, int] = SIZES) -> list[str]:
    return ["--model.name=llama3", "--model.flavor=debugmodel",
            *(f"--model.override.{key}={value}" for key, value in sizes.items())]


def their_tensors(dim: int = 64, layers: int = 2, hidden: int = HIDDEN, words: int = 2304,
                  keys: int = 32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"model.embed_tokens": (words, dim), "model.norm": (dim,), "lm_head": (words, dim)}
    for layer in range(layers):
        block = f"model.layers.{layer}."
        shapes |= {f"{block}self_attn.{name}_proj": (rows, dim) for name, rows in
                   (("q", dim), ("k", keys), ("v", keys), ("o", dim))}
        shapes |= {f"{block}mlp.gate_proj": (hidden, dim), f"{block}mlp.up_proj": (hidden, dim),
                   f"{block}mlp.down_proj": (dim, hidden), f"{block}input_layernorm": (dim,),
                   f"{block}post_attention_layernorm": (dim,)}
    return {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class Conversions(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "theirs"
        self.target = self.folder / "ours"

    def make_source(self, tensors: dict | None = None, config: dict | None = None) -> None:
        self.source.mkdir(exist_ok=True)
        (self.source / "config.json").write_text(json.dumps(CONFIG if config is None else config))
        safetensors.torch.save_file(their_tensors() if tensors is None else tensors,
                                    self.source / "model.safetensors", {"format": "pt"})

    def snapshot(self) -> dict[str, bytes | None]:
        return {str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
                for path in self.folder.rglob("*")}

    def refused(self, exit_code: int, says: list[str], *words) -> None:
        before = self.snapshot()
        run = self.titan("convert", *words)
        self.expect(run, exit_code)
        for part in says:
            self.assertIn(part, run.errors)
        self.assertEqual(run.errors.count("\n"), 1, run.errors)
        self.assertEqual(self.snapshot(), before)

    def convert(self, *words):
        run = self.titan("convert", *words)
        self.expect(run, OK)
        return run

    def from_hf(self, *more) -> list:
        return ["from-hf", self.source, self.target, *flags(), *more]


class WrongModels(Conversions):
    def test_a_misshapen_tensor_is_named(self):
        tensors = their_tensors()
        tensors["model.norm.weight"] = torch.zeros(65)
        self.make_source(tensors)
        self.refused(STORAGE, ["model.norm.weight has shape [65], this model's has [64]"], *self.from_hf())

    def test_a_tensor_that_only_a_later_file_of_metas_has_is_unexpected_too(self):
        self.source.mkdir()
        (self.source / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}))
        for number, more in enumerate(({}, {"more.weight": torch.ones(3)})):
            torch.save({"norm.weight": torch.ones(64), **more}, self.source / f"consolidated.{number:02}.pth")
        self.refused(STORAGE, ["1/21 tensors, 20 missing, 1 unexpected", "more.weight"], "from-meta", self.source,
                     self.target, *flags())


class WrongFiles(Conversions):
    def test_a_pickle_that_asks_for_more_is_refused_and_nothing_runs(self):
        class Evil:
            def __reduce__(self):
                return (os.mkdir, (made,))

        made = str(self.folder / "made")
        self.source.mkdir()
        (self.source / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}))
        torch.save({"norm.weight": Evil()}, self.source / "consolidated.00.pth")
        self.refused(STORAGE, ["consolidated.00.pth", "nothing was executed"], "from-meta", self.source, self.target,
                     *flags())


class Quantised(Conversions):
    def make_quantised(self, settings: dict | None = None) -> dict[str, torch.Tensor]:
        """The source's folder; what its weights stand for."""
        stored, meant = quantised(their_tensors())
        self.make_source(stored, {**CONFIG, "quantization_config": SETTINGS if settings is None else settings})
        return meant

    def test_they_come_in_as_the_numbers_they_stand_for(self):
        meant = self.make_quantised()
        self.assertIn("21/21 tensors, 0 missing, 0 unexpected", self.convert(*self.from_hf()).output)
        back = self.folder / "back"
        self.convert("to-hf", self.target, back, *flags())
        written = safetensors.torch.load_file(back / "model.safetensors")
        self.assertEqual(set(written), set(meant))
        for name, weight in meant.items():
            self.assertTrue(torch.equal(written[name], weight), name)
        self.assertIn("21/21 tensors", self.convert("verify", self.source, *flags()).output)

    def test_float8_weights_that_the_settings_do_not_speak_of_are_no_numbers(self):
        self.make_quantised()
        (self.source / "config.json").write_text(json.dumps(CONFIG))
        self.refused(STORAGE, ["14 unexpected", "up_proj.weight_scale_inv", "is of float8_e4m3fn"], *self.from_hf())


class Verify(Conversions):
    def test_an_import_counts_the_tensors_of_a_model_of_32_layers(self):
        layers = 32
        self.make_source(their_tensors(layers=layers), {**CONFIG, "num_hidden_layers": layers})
        sizes = {**SIZES, "n_layers": layers}
        run = self.convert("from-hf", self.source, self.target, *flags(sizes))
        self.assertRegex(run.output, r"theirs holds llama3 debugmodel: 291/291 tensors, 0 missing, 0 unexpected; \S+ \S+ parameters")
        state = self.folder / "state.pt"
        dcp_to_torch_save(self.target, state)
        self.assertEqual(len(torch.load(state, weights_only=True)), 291)

    def test_a_whole_export_is_verified_and_one_flipped_bit_in_any_file_is_found(self):
        self.make_source()
        self.convert(*self.from_hf())
        said = self.convert("verify", self.target, *flags()).output
        self.assertIn("every byte has the hash it was saved with", said)
        self.assertIn("21/21 tensors, 0 missing, 0 unexpected", said)
        export = self.folder / "export"
        self.convert("to-hf", self.target, export, *flags(), "--shard-gigabytes=0.0005")
        self.assertIn("21/21 tensors", self.convert("verify", export, *flags()).output)
        for folder in (self.target, export):
            for path in folder.iterdir():
                whole = path.read_bytes()
                path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 16]) + whole[-2:])
                self.refused(STORAGE, [folder.name], "verify", folder, *flags())
                path.write_bytes(whole)
            self.convert("verify", folder, *flags())

    def test_the_model_of_our_own_checkpoints_and_exports_need_not_be_named(self):
        self.make_source()
        self.convert(*self.from_hf())
        export = self.folder / "export"
        self.assertIn("holds llama3 debugmodel: 21/21 tensors", self.convert("to-hf", self.target, export).output)
        run = self.train("--checkpoint.enable", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only")
        for folder in (self.target, export, run.folder / "checkpoint/step-2"):
            self.assertIn("names   llama3 debugmodel: 21/21 tensors", self.convert("verify", folder).output)
        self.convert("from-hf", export, self.folder / "again")
        config = json.loads((export / "config.json").read_text())
        (export / "config.json").write_text(json.dumps({**config, "num_attention_heads": 8}))
        (export / "titan_manifest.json").unlink()
        self.refused(STORAGE, ["another model", "q_proj"], "from-hf", export, self.folder / "changed")

    def test_the_tokenizer_of_a_run_goes_along_unless_another_is_named(self):
        tokenizer = self.write("own.model", (ROOT / "configs/tokenizers/stories.model").read_bytes() + b"\n")
        run = self.train("--checkpoint.enable", f"--model.tokenizer_path={tokenizer}")
        saved = run.folder / "checkpoint/step-2"
        self.convert("to-hf", saved, self.folder / "recorded")
        self.assertEqual((self.folder / "recorded/tokenizer.model").read_bytes(), tokenizer.read_bytes())
        for name, words in (("config", [DEBUG_CONFIG, *SMALL]), ("option", ["--model.tokenizer_path=configs/tokenizers/stories.model"])):
            self.convert("to-hf", saved, self.folder / name, *words)
            self.assertEqual((self.folder / name / "tokenizer.model").read_bytes(), tokenizer.read_bytes()[:-1])

    def test_what_brings_no_hashes_is_called_unverified(self):
        self.make_source()
        self.assertIn("unverified", self.convert("verify", self.source, *flags()).output)
        self.assertIn("a run can resume from it", self.verify_python())
        self.assertIn("unverified", self.verify_python())

    def verify_python(self, dtype=torch.float32, **entries) -> str:
        """What is said of a run's checkpoint that Python has saved; `entries`: in place of its own."""
        folder = self.folder / "python"
        shutil.rmtree(folder, ignore_errors=True)
        state = {"norm.weight": torch.ones(3, dtype=dtype), "train_state": {"step": torch.tensor(3)},
                 "optimizer": {"state": {"norm.weight": {"exp_avg": torch.ones(3)}}}, **entries}
        dcp.save(state, checkpoint_id=folder)
        return self.convert("verify", folder).output

    def test_what_no_run_resumes_from_is_not_said_to_be_resumed_from(self):
        self.assertIn("the progress of a run, without its optimizer's moments", self.verify_python(optimizer={}))
        self.assertIn("none resumes with norm.weight in float16", self.verify_python(torch.float16))
        self.verify_python()
        path = self.folder / "python/.metadata"
        whole = path.read_bytes()

        def no_chunks(metadata):
            metadata.state_dict_metadata["norm.weight"].chunks.clear()
            metadata.storage_data = {key: place for key, place in metadata.storage_data.items() if key.fqn != "norm.weight"}

        def larger(metadata):
            metadata.state_dict_metadata["norm.weight"].size = torch.Size([6])

        def other_dtype(metadata):
            metadata.state_dict_metadata["norm.weight"].properties.dtype = torch.float16

        for change, says in ((no_chunks, "leave a part of it out"), (larger, "leave a part of it out"),
                             (other_dtype, "and float16 [3] in the index")):
            metadata = pickle.loads(whole)
            change(metadata)
            path.write_bytes(pickle.dumps(metadata))
            self.refused(STORAGE, ["norm.weight", says], "verify", self.folder / "python")


class Memory(Conversions):
    def peak(self, *words) -> int:
        """Most resident bytes of a conversion."""
        done = subprocess.run([sys.executable, "-c", PEAK, self.program, "convert", *map(str, words)], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, OK, done.stderr)
        return int(done.stdout) * 1024

    @staticmethod
    def make_metas(folder: pathlib.Path, tensors: dict[str, torch.Tensor], layers: int) -> None:
        """The same tensors in Meta's form, cut into two files."""
        cuts = {"q_proj": ("attention.wq", 0), "k_proj": ("attention.wk", 0), "v_proj": ("attention.wv", 0),
                "o_proj": ("attention.wo", 1), "gate_proj": ("feed_forward.w1", 0), "down_proj": ("feed_forward.w2", 1),
                "up_proj": ("feed_forward.w3", 0), "input_layernorm": ("attention_norm", None),
                "post_attention_layernorm": ("ffn_norm", None), "embed_tokens": ("tok_embeddings", 1),
                "lm_head": ("output", 0), "norm": ("norm", None)}
        folder.mkdir()
        (folder / "params.json").write_text(json.dumps({
            "dim": 1024, "n_layers": layers, "n_heads": 16, "n_kv_heads": 16, "norm_eps": 1e-5, "rope_theta": 500000.0}))
        for part in range(2):
            state = {}
            for name, tensor in tensors.items():
                words = name.removesuffix(".weight").split(".")
                ours, cut = cuts[words[-1]]
                block = f"layers.{words[2]}." if "layers" in words else ""
                piece = tensor if cut is None else tensor.chunk(2, cut)[part]
                state[f"{block}{ours}.weight"] = piece.bfloat16().clone()
            torch.save(state, folder / f"consolidated.{part:02}.pth")

    def test_a_model_four_times_as_large_takes_no_more_memory(self):
        """Stretches are at most 128 MiB; the models have 0.1 and 0.4 GB."""
        peaks = {}
        for layers in (4, 16):
            sizes = {"dim": 1024, "n_layers": layers, "n_heads": 16, "n_kv_heads": 16, "multiple_of": 256,
                     "vocab_size": 2304}
            source, ours, back = (self.folder / f"{name}-{layers}" for name in ("theirs", "ours", "back"))
            source.mkdir()
            (source / "config.json").write_text(json.dumps({
                **CONFIG, "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 16,
                "num_key_value_heads": 16, "intermediate_size": 2816}))
            tensors = their_tensors(1024, layers, 2816, 2304, 1024)
            safetensors.torch.save_file({name: tensor.bfloat16() for name, tensor in tensors.items()},
                                        source / "model.safetensors", {"format": "pt"})
            self.make_metas(self.folder / f"metas-{layers}", tensors, layers)
            del tensors
            peaks[layers] = [self.peak("from-meta", self.folder / f"metas-{layers}", self.folder / f"from-meta-{layers}",
                                       *flags(sizes), "--training.dtype=bfloat16"),
                             self.peak("from-hf", source, ours, *flags(sizes), "--training.dtype=bfloat16"),
                             self.peak("to-hf", ours, back, *flags(sizes))]
        for small, large in zip(peaks[4], peaks[16], strict=True):
            self.assertLess(large - small, 96 << 20, peaks)


if __name__ == "__main__":
    unittest.main()
