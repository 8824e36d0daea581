"""titan_train's tokenizer commands, asked through files."""

from __future__ import annotations

import pathlib
import subprocess


class Program:
    def __init__(self, binary: str, folder: pathlib.Path, limit: float):
        """`limit`: in seconds, of one command."""
        self.binary, self.file, self.limit = binary, folder / "input", limit

    def ask(self, command: str, model: pathlib.Path, content: bytes, *options: str) -> bytes:
        self.file.write_bytes(content)
        words = [self.binary, "tokenizer", command, str(model), str(self.file), *options]
        done = subprocess.run(words, capture_output=True, timeout=self.limit)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr.decode()}")
        return done.stdout
