"""Generation of titan_train against itself without a cache, and against Python's transformers, both on two threads.

Models have random weights. A time is measured inside each program: from the prompt's ids to the first token, and from
there to the last one; loading is not in it."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "reference"))

import torch
import transformers

import ratios
from generate_test import byte_tokenizer

THREADS = 2
SHORT, LONG = "Once upon a time", "x" * 1024  # a byte is a token
SHAPES = {
    "debug": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=16,
                  num_key_value_heads=16, vocab_size=2048),
    "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True),
}


def make(shape: str, folder: pathlib.Path) -> pathlib.Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(max_position_embeddings=4096, **SHAPES[shape])
    transformers.LlamaForCausalLM(config).save_pretrained(folder / shape)
    (folder / shape / "generation_config.json").unlink()  # its end of text is a letter here
    byte_tokenizer().save_pretrained(folder / shape)
    return folder / shape


class Titan:
    def __init__(self, binary: str, model: pathlib.Path, dtype: str):
        self.command = [binary, "generate", str(model), f"--dtype={dtype}", "--json", f"--training.threads={THREADS}"]

    def __call__(self, prompt: str, tokens: int, *more: str) -> tuple[float, float]:
        """Seconds to the first token, and for each of the others."""
        words = ["--prompt", prompt, "--max-new-tokens", str(tokens), *more]
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=True)
        said = json.loads(done.stdout)
        made = len(said["tokens"]) + (said["end"] != "length")  # the token that ends a text took as long
        if made < tokens / 2:
            raise SystemExit(f"{made} tokens instead of {tokens}: the text ended")
        first = said["first_token_seconds"]
        return first, (said["seconds"] - first) / max(1, made - 1)


class Transformers:
    def __init__(self, model: pathlib.Path, dtype: str):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    @torch.no_grad()
    def seconds(self, prompt: str, tokens: int) -> float:
        ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        start = time.perf_counter()
        self.model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return time.perf_counter() - start

    def __call__(self, prompt: str, tokens: int) -> tuple[float, float]:
        first = self.seconds(prompt, 1)
        return first, (self.seconds(prompt, tokens) - first) / max(1, tokens - 1) if tokens > 1 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16, help="of the 1B shape")
    parser.add_argument("--check", action="store_true", help="fail when a bar is missed")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    own, others = [], []
    with tempfile.TemporaryDirectory(prefix="titan-bench-generate-") as name:
        folder = pathlib.Path(name)
        titan = Titan(arguments.binary, make("debug", folder), "float32")
        pairs = ratios.interleaved(arguments.pairs, lambda: titan(SHORT, 257)[1],
                                   lambda: titan(SHORT, 257, "--no-cache")[1])
        own.append(ratios.Row("debug model, 256 tokens, fp32", "cached", "no cache", [b / a for a, b in pairs], 5, True))
        model = make("1B", folder)
        for dtype in ("float32", "bfloat16"):
            titan, theirs = Titan(arguments.binary, model, dtype), Transformers(model, dtype)
            theirs(SHORT, 2)
            pairs = ratios.interleaved(arguments.pairs, lambda: titan(SHORT, arguments.tokens)[1],
                                       lambda: theirs(SHORT, arguments.tokens)[1])
            others.append(ratios.Row(f"1B shape, each token, {dtype}", "generate", "transformers",
                                     [b / a for a, b in pairs], 1.3, True))
            pairs = ratios.interleaved(arguments.pairs, lambda: titan(LONG, 1)[0], lambda: theirs(LONG, 1)[0])
            others.append(ratios.Row(f"1B shape, 1,024 tokens to the first, {dtype}", "generate", "transformers",
                                     [b / a for a, b in pairs], 1.2, True))
    print(ratios.table(own, "titan_train"), ratios.table(others), sep="\n\n")
    return 1 if arguments.check and not all(row.met for row in own + others) else 0


if __name__ == "__main__":
    sys.exit(main())
