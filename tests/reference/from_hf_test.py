"""model.from_hf: models that transformers made, of every supported architecture and rotary scaling, against transformers:
logits, gradients of one step, and the export of the model after it."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import tempfile
import tomllib
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import dump
from titan import DEBUG_CONFIG, ROOT, binary, train

TOLERANCE = 1e-5
LENGTH = 96
SIZES = dict(vocab_size=2304, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=4096, attn_implementation="eager")
OURS = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3", "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm"}


def rope(theta: float = 1e4, **scaling) -> dict:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **scaling}}


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
CASES = {
    "llama": ("Llama", dict(**rope(5e5))),
    "llama, tied, odd sizes": ("Llama", dict(hidden_size=90, intermediate_size=77, num_attention_heads=9,
                                             num_key_value_heads=3, tie_word_embeddings=True, rms_norm_eps=1e-6,
                                             **rope(1e5))),
    "llama, its own head size": ("Llama", dict(head_dim=32, num_key_value_heads=4, **rope())),
    "llama3 scaling": ("Llama", dict(**rope(5e5, **LLAMA3))),
    "linear scaling": ("Llama", dict(**rope(rope_type="linear", factor=4.0))),
    "dynamic scaling": ("Llama", dict(max_position_embeddings=64, **rope(rope_type="dynamic", factor=2.0))),
    "yarn": ("Llama", dict(**rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=48))),
    "mistral": ("Mistral", dict(sliding_window=None, head_dim=24, num_key_value_heads=1, **rope(1e6))),
    "mistral, a longer window": ("Mistral", dict(sliding_window=128, **rope())),
    "qwen2": ("Qwen2", dict(**rope(1e6))),
    "qwen2, tied, yarn with mscale": ("Qwen2", dict(tie_word_embeddings=True, **rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.2, mscale_all_dim=0.8))),
    "qwen3": ("Qwen3", dict(head_dim=32, num_key_value_heads=4, tie_word_embeddings=True, **rope(1e6))),
    "qwen3, one key head": ("Qwen3", dict(head_dim=16, num_key_value_heads=1, **rope())),
}


def make(case: str, **changes):
    """A model with weights large enough for every layer to matter, and norms and biases that show."""
    kind, options = CASES[case]
    torch.manual_seed(5)
    config = getattr(transformers, kind + "Config")(**{**SIZES, **options, **changes})
    model = getattr(transformers, kind + "ForCausalLM")(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape)
            weight.copy_(1 + 0.1 * noise if "norm" in name else 0.1 * noise)
    return model.eval()


def our_name(theirs: str) -> str:
    outer = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight",
             "lm_head.weight": "output.weight"}
    if theirs in outer:
        return outer[theirs]
    _, _, layer, *middle, leaf = theirs.split(".")
    return f"layers.{layer}.{OURS['.'.join(middle)]}.{leaf}"


def our_rows(name: str, tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """A rotary pair is half a head apart in theirs and adjacent in ours."""
    if not any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
        return tensor
    heads = tensor.shape[0] // head_dim
    cut = tensor.reshape(heads, 2, head_dim // 2, *tensor.shape[1:])
    return cut.transpose(1, 2).reshape(tensor.shape)


class FromHuggingFaceTest(unittest.TestCase):
    def setUp(self):
        binary()
        folder = tempfile.TemporaryDirectory(prefix="titan-from-hf-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def flags(self, model: pathlib.Path) -> list[str]:
        return [f"--model.from_hf={model}", "--training.steps=1", f"--training.seq_len={LENGTH}",
                "--training.local_batch_size=2", "--debug.dump_steps=1", "--debug.dump_logits", "--optimizer.lr=0",
                "--training.mixed_precision_param=float32", "--training.max_norm=0", "--checkpoint.enable",
                "--checkpoint.last_save_in_hf"]

    def test_logits_gradients_and_exports(self):
        for number, case in enumerate(CASES):
            with self.subTest(case):
                theirs, out = make(case), self.folder / f"run-{number}"
                theirs.save_pretrained(self.folder / f"model-{number}")
                train(out, [*self.flags(self.folder / f"model-{number}"), "--model.max_seq_len=4096"])
                ours = dump.read(out, 1)
                logits = theirs(ours.tokens).logits
                self.assertLess((ours.logits.view_as(logits) - logits).abs().max().item(),
                                TOLERANCE * max(1, logits.abs().max().item()))
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ours.labels.flatten())
                loss.backward()
                self.assertAlmostEqual(ours.loss, loss.item(), delta=1e-5)
                names = set()
                for name, weight in theirs.named_parameters():
                    expected = our_rows(name, weight.grad, getattr(theirs.config, "head_dim", 16))
                    got = ours.gradients[our_name(name)]
                    names.add(our_name(name))
                    self.assertLess((got - expected).norm().item(), 2e-5 * expected.norm().item(), name)
                self.assertEqual(names, set(ours.gradients))
                (export,) = (out / "checkpoint").glob("step-1")
                again = transformers.AutoModelForCausalLM.from_pretrained(export, attn_implementation="eager").eval()
                self.assertIs(type(again), type(theirs))
                self.assertLess((again(ours.tokens).logits - logits).abs().max().item(), TOLERANCE)

    def folder_with(self, config: dict) -> pathlib.Path:
        model = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (model / "config.json").write_text(json.dumps(config))
        return model

    def options(self, config: dict) -> subprocess.CompletedProcess:
        """The options that a folder with this config.json gives."""
        model = self.folder_with(config)
        return subprocess.run([binary(), "config", "show", str(DEBUG_CONFIG), f"--model.from_hf={model}"], cwd=ROOT,
                              capture_output=True, text=True)

    def test_rotary_settings_of_every_spelling_are_read_as_transformers_reads_them(self):
        linear, yarn = {"factor": 2.0}, {"factor": 4.0}
        llama3 = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        spellings = [
            {},
            {"rope_theta": 5e5},
            {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 5e5},
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_type": "linear", **linear}},
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "linear", **linear}, "rope_theta": 7e5},
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {}},
            {"rope_parameters": {}, "rope_scaling": {"type": "linear", **linear}, "rope_theta": 7e5},
            {"rope_parameters": None, "rope_scaling": None, "rope_theta": 7e5},
            {"rope_scaling": {"rope_theta": 3e5, "rope_type": "default"}, "rope_theta": 7e5},
            {"rope_scaling": {"rope_type": "yarn", "type": "linear", **yarn}},
            {"rope_scaling": {"type": "yarn", **yarn}, "original_max_position_embeddings": 32},
            {"rope_scaling": {"type": "dynamic", **linear, "original_max_position_embeddings": 64}},
            {"rope_scaling": {"type": "llama3", **llama3}},
            {"rope_scaling": {"type": "llama3", **llama3, "original_max_position_embeddings": 64},
             "original_max_position_embeddings": 32},
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}, "partial_rotary_factor": 0.5},
        ]
        for kind in ("llama", "mistral", "qwen2", "qwen3"):
            for spelling in spellings:
                with self.subTest(kind=kind, spelling=spelling):
                    config = {**SIZES, "max_position_embeddings": 256, "model_type": kind, **spelling}
                    del config["attn_implementation"]
                    # Making the model completes the settings.
                    read = transformers.AutoConfig.from_pretrained(self.folder_with(config))
                    theirs = transformers.AutoModelForCausalLM.from_config(read).config.rope_parameters
                    shown = self.options({**config, "architectures": []})
                    self.assertEqual(shown.returncode, 0, shown.stderr)
                    model = tomllib.loads(shown.stdout)["model"]
                    ours = model["override"]
                    self.assertEqual(ours["rope_theta"], theirs["rope_theta"])
                    names = {"default": "none", "llama3": "llama3_1"}
                    kind_of_rope = theirs["rope_type"]
                    self.assertEqual(model["rope_scaling"], names.get(kind_of_rope, kind_of_rope))
                    if kind_of_rope == "default":
                        continue
                    self.assertEqual(ours["rope_factor"], theirs["factor"])
                    original = {"linear": 0, "dynamic": 256}.get(kind_of_rope)
                    if original is None:
                        original = theirs["original_max_position_embeddings"]
                    self.assertEqual(ours["rope_original_context"], original)

    def test_what_a_file_leaves_out_is_the_default_of_its_class(self):
        values = {"vocab_size": 128, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 1,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "head_dim": 32,
                  "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 2048, "rope_theta": 5e5,
                  "hidden_act": "silu", "use_sliding_window": False}
        names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
                 "n_kv_heads": "num_key_value_heads", "hidden_dim": "intermediate_size", "vocab_size": "vocab_size",
                 "norm_eps": "rms_norm_eps"}
        chance = random.Random(8)
        for kind in ("llama", "mistral", "qwen2", "qwen3"):
            for _ in range(5):
                config = {key: value for key, value in values.items() if chance.random() < 0.5}
                with self.subTest(kind=kind, config=config):
                    theirs = transformers.AutoConfig.from_pretrained(self.folder_with({**config, "model_type": kind}))
                    shown = self.options({**config, "model_type": kind})
                    usual = theirs.hidden_size // theirs.num_attention_heads
                    width = getattr(theirs, "head_dim", usual)
                    # transformers reads such sizes, and its model fails in the first step.
                    if theirs.num_attention_heads % theirs.num_key_value_heads or width % 2:
                        self.assertEqual(shown.returncode, 64, shown.stdout)
                        self.assertRegex(shown.stderr, "is not a multiple of n_kv_heads|head size .* is odd")
                        continue
                    self.assertEqual(shown.returncode, 0, shown.stderr)
                    model = tomllib.loads(shown.stdout)["model"]
                    ours = model["override"]
                    self.assertEqual({name: ours[name] for name in names},
                                     {name: getattr(theirs, key) for name, key in names.items()})
                    self.assertEqual(ours["head_dim"], width)
                    self.assertEqual(ours["embeddings"], "tied" if theirs.tie_word_embeddings else "untied")
                    self.assertEqual(ours["rope_theta"], theirs.rope_parameters["rope_theta"])
                    window = theirs.sliding_window if kind == "mistral" else None
                    longest = theirs.max_position_embeddings
                    self.assertEqual(model["max_seq_len"], min(longest, window or longest))

    def test_rotary_settings_by_layer_type_are_read_if_they_agree(self):
        one = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
        config = {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
        for by_type in ({"full_attention": one}, {"full_attention": one, "sliding_attention": dict(one)}):
            shown = self.options({**config, "rope_parameters": by_type})
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertEqual(tomllib.loads(shown.stdout)["model"]["override"]["rope_theta"], 5e5)
        for other in ({**one, "factor": 3.0}, None):
            shown = self.options({**config, "rope_parameters": {"full_attention": one, "sliding_attention": other}})
            self.assertEqual(shown.returncode, 64, shown.stdout)
            self.assertIn("differ from layer type to layer type", shown.stderr)

    def test_two_sets_of_weights_are_named_and_transformers_choice_is_read(self):
        first, second = make("llama"), make("llama")
        with torch.no_grad():
            second.model.norm.weight.mul_(2)
        model, other = self.folder / "both", self.folder / "other"
        second.save_pretrained(model, max_shard_size="40KB")
        first.save_pretrained(other)
        (model / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
        out = self.folder / "both-run"
        text = train(out, [*self.flags(model), "--model.max_seq_len=4096"])
        ours = dump.read(out, 1)
        chosen = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
        logits = chosen(ours.tokens).logits
        self.assertLess((ours.logits.view_as(logits) - logits).abs().max().item(), TOLERANCE * logits.abs().max().item())
        for name in ("model.safetensors,", "model.safetensors.index.json"):
            self.assertIn(name.rstrip(","), str(text))

    def test_tensors_of_a_base_model_are_read(self):
        for case in ("qwen3", "qwen2, tied, yarn with mscale"):
            theirs = make(case, tie_word_embeddings=True)
            model = self.folder / f"base-{case[:5]}"
            theirs.model.save_pretrained(model)
            config = json.loads((model / "config.json").read_text())
            config["architectures"] = [type(theirs).__name__]
            (model / "config.json").write_text(json.dumps(config))
            out = self.folder / f"run-{case[:5]}"
            train(out, [*self.flags(model), "--model.max_seq_len=4096"])
            ours = dump.read(out, 1)
            logits = theirs(ours.tokens).logits
            self.assertLess((ours.logits.view_as(logits) - logits).abs().max().item(),
                            TOLERANCE * logits.abs().max().item())

    def test_what_is_not_supported_is_refused_by_name(self):
        model = self.folder / "model"
        make("llama").save_pretrained(model)
        whole = json.loads((model / "config.json").read_text())
        for change, words in (
            ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "MixtralForCausalLM"),
            ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
            ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 32}, "sliding_window"),
            ({"hidden_act": "gelu"}, "hidden_act"),
            ({"attention_bias": True}, "attention_bias"),
            ({"num_local_experts": 8}, "experts"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"hidden_size": None}, "no hidden_size"),
            ({"hidden_size": -1}, "hidden_size is -1"),
        ):
            with self.subTest(words):
                (model / "config.json").write_text(json.dumps({**whole, **change}))
                done = subprocess.run([binary(), str(DEBUG_CONFIG), *self.flags(model)], cwd=ROOT, text=True,
                                      capture_output=True, check=False)
                self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stderr.count("model.from_hf"), 1, done.stderr)

    def test_weights_that_are_not_read_are_not_passed_over(self):
        model = self.folder / "model"
        make("llama").save_pretrained(model)
        (model / "model.safetensors").rename(model / "pytorch_model.bin")
        done = subprocess.run([binary(), str(DEBUG_CONFIG), *self.flags(model)], cwd=ROOT, text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 64)
        self.assertIn("are in pytorch_model.bin, and safetensors are read", done.stderr)

    def test_an_adapter_beside_the_weights_is_named(self):
        model = self.folder / "model"
        make("llama").save_pretrained(model)
        (model / "adapter_config.json").write_text("{}")
        self.assertIn("holds an adapter of PEFT", self.titan("convert", "verify", "model", code=64))
        self.assertIn("holds an adapter of PEFT", self.titan("plan", DEBUG_CONFIG, "--model.from_hf=model", code=64))

    def test_a_second_set_of_weights_is_named(self):
        model = self.folder / "model"
        make("llama").save_pretrained(model)
        (model / "pytorch_model.bin").write_bytes(b"")
        said = self.titan(DEBUG_CONFIG, *self.flags(model), "--training.steps=1")
        self.assertIn("holds two sets of weights, model.safetensors and pytorch_model.bin: the first is read", said)

    def titan(self, *words: object, code: int = 0) -> str:
        done = subprocess.run([binary(), *map(str, words)], cwd=self.folder, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_conversions_take_what_config_json_says(self):
        for number, case in enumerate(("qwen3", "mistral, a longer window", "llama, tied, odd sizes", "dynamic scaling",
                                       "qwen2, tied, yarn with mscale")):
            with self.subTest(case):
                theirs, ours, back = (f"{name}-{number}" for name in ("theirs", "ours", "back"))
                model = make(case)
                model.save_pretrained(self.folder / theirs)
                self.assertIn(" custom: ", self.titan("convert", "from-hf", theirs, ours))
                self.assertIn("0 missing", self.titan("convert", "verify", theirs))
                self.titan("convert", "to-hf", ours, back)
                again = transformers.AutoModelForCausalLM.from_pretrained(self.folder / back)
                self.assertIs(type(again), type(model))
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(again.state_dict()[name], weight), name)
                said = self.titan("generate", ours, "--prompt", "x", "--max-new-tokens", 2, "--model.tokenizer_path",
                                  ROOT / "configs/tokenizers/stories.model")
                self.assertTrue(said.startswith("x"), said)

    def test_a_run_resumes_without_the_folder(self):
        make("qwen3").save_pretrained(self.folder / "theirs")
        words = [DEBUG_CONFIG, "--model.from_hf=theirs", "--training.seq_len=64", "--checkpoint.enable",
                 "--checkpoint.last_save_model_only=false", "--model.tokenizer_path",
                 ROOT / "configs/tokenizers/stories.model"]
        self.titan(*words, "--training.steps=1", "--job.dump_folder=run")
        (self.folder / "theirs").rename(self.folder / "gone")
        for steps in (2, 3):
            self.assertIn(f"LOAD: step {steps - 1}", self.titan(*words, f"--training.steps={steps}", "--job.dump_folder=run"))
        said = self.titan(*words[:-2], "--job.dump_folder=another", code=64)
        self.assertIn("1 problem in the configuration:", said)
        self.assertIn("theirs is not a folder", said)

    def test_a_folder_that_is_none(self):
        done = subprocess.run([binary(), str(DEBUG_CONFIG), "--model.from_hf=nowhere"], cwd=ROOT, text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 64)
        self.assertIn("nowhere is not a folder", done.stderr)


if __name__ == "__main__":
    unittest.main()
