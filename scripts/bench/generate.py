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
    # By default a text ends at id 2, a letter here.
    config = transformers.LlamaConfig(max_position_embeddings=4096, eos_token_id=None, **SHAPES[shape])
    transformers.LlamaForCausalLM(config).save_pretrained(folder / shape)
    byte_tokenizer().save_pretrained(folder / shape)
    return folder / shape


class Titan:
    def __init__(self, binary: str, model: pathlib.Path, dtype: str):
        self.command = [binary, "generate", str(model), f"--dtype={dtype}", "--json", f"--training.threads={THREADS}"]

    def __call__(self, prompt: str, tokens: int, *more: str, texts: int = 1) -> tuple[float, float]:
        """Seconds to the first token, and for each of the others, of all texts together."""
        words = [*["--prompt", prompt] * texts, "--max-new-tokens", str(tokens), *more]
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[0])
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
    def seconds(self, prompt: str, tokens: int, texts: int) -> float:
        ids = self.tokenizer([prompt] * texts, return_tensors="pt").input_ids
        start = time.perf_counter()
        self.model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return time.perf_counter() - start

    def __call__(self, prompt: str, tokens: int, texts: int = 1) -> tuple[float, float]:
        first = self.seconds(prompt, 1, texts)
        if tokens == 1:
            return first, 0.0
        return first, (self.seconds(prompt, tokens, texts) - first) / (tokens - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16, help="of the 1B shape")
    parser.add_argument("--only", default="", help="rows with this text in their name")
    parser.add_argument("--check", action="store_true", help="fail when a bar is missed")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    own, others = [], []

    def wanted(*rows: str) -> bool:
        return any(arguments.only in row for row in rows)

    def measure(rows: list, what: str, other: str, bar: float, one, two) -> None:
        if wanted(what):
            pairs = ratios.interleaved(arguments.pairs, one, two)
            rows.append(ratios.Row(what, "generate", other, [b / a for a, b in pairs], bar, True))

    with tempfile.TemporaryDirectory(prefix="titan-bench-generate-") as name:
        folder = pathlib.Path(name)
        titan = Titan(arguments.binary, make("debug", folder), "float32")
        measure(own, "debug model, each of 256 tokens, float32", "--no-cache", 5,
                lambda: titan(SHORT, 257)[1], lambda: titan(SHORT, 257, "--no-cache")[1])  # fmt: skip
        rows = {dtype: (f"1B shape, each token of 1, {dtype}", f"1B shape, each token of 4, {dtype}",
                        f"1B shape, 1,024 tokens to the first, {dtype}") for dtype in ("float32", "bfloat16")}  # fmt: skip
        tokens = arguments.tokens
        for dtype in filter(lambda dtype: wanted(*rows[dtype]), rows):
            model = folder / "1B" if (folder / "1B").exists() else make("1B", folder)
            titan, theirs = Titan(arguments.binary, model, dtype), Transformers(model, dtype)
            theirs(SHORT, 2)
            for what, texts, bar in zip(rows[dtype], (1, 4), (1.3, 1.0)):
                measure(others, what, "transformers", bar,
                        lambda: titan(SHORT, tokens, texts=texts)[1], lambda: theirs(SHORT, tokens, texts)[1])  # fmt: skip
            measure(others, rows[dtype][2], "transformers", 1.2,
                    lambda: titan(LONG, 1)[0], lambda: theirs(LONG, 1)[0])  # fmt: skip
    print(ratios.table(own, "titan_train"), ratios.table(others), sep="\n\n")
    return 1 if arguments.check and not all(row.met for row in own + others) else 0


if __name__ == "__main__":
    sys.exit(main())
