"""A job on the mock GPU (tests/mock_cuda, docs/gpu.md), and what it asked of it."""

from __future__ import annotations

import collections
import json
import pathlib
import subprocess
import tempfile

from program import CORPORA, OK, ROOT, TIME_LIMIT_SECONDS, BehaviourTest, Run
from rank_processes import clean_environment

FUSED = "--compile.enable"
FLOAT8 = "--model.converters=quantize.linear.float8"
BF16 = "--training.mixed_precision_param=bfloat16"
ALONE = "--activation_checkpoint.mode=none"
# Nothing is computed on the mock, so weights there are no numbers that a check could find right or wrong.
UNCHECKED = "--debug.replica_check_steps=0"


class MockGpu(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.mock = pathlib.Path(self.program).parent / "mock_cuda" / "libmock_cuda.so"
        if not self.mock.exists():
            self.skipTest("the program is built without CUDA, and the mock GPU with it")

    def on_gpu(self, *words, ranks: int = 1, code: int = OK, folder: pathlib.Path | None = None, **settings) -> Run:
        """Trains the debug model on `ranks` mock GPUs. `settings`: variables of the mock (MOCK_CUDA_…), None: not set."""
        launch = ["launch", "-n", str(ranks)] if ranks > 1 else []
        return self.job([*launch, "configs/debug_model.toml", UNCHECKED, *words], ranks, code, settings, folder)

    def llama_8b(self, *words, steps: int, code: int = OK, **settings) -> Run:
        """Llama 3.1 8B as scripts/gpu/bench.py runs it; the mock's memory is addresses alone."""
        shape = [
            "--model.name=llama3_1",
            "--model.flavor=8B",
            "--model.override.vocab_size=128256",
            "--model.tokenizer_path=configs/tokenizers/stories.model",
            "--training.seq_len=8192",
            "--training.local_batch_size=1",
            "--training.dtype=bfloat16",
            "--optimizer.state_dtype=bfloat16",
            "--training.dataset=text",
            f"--training.dataset_path={CORPORA / 'stories.jsonl'}",
            ALONE,
        ]
        return self.job(["train", *shape, *words, f"--training.steps={steps}"], 1, code, settings)

    def variables(self, devices: int, ledgers: pathlib.Path, **settings) -> dict[str, object]:
        """Of a process that sees so many mock GPUs; `settings` as above, and others."""
        mock = {"MOCK_CUDA_LEDGER": ledgers, "MOCK_CUDA_DEVICES": devices, "MOCK_CUDA_HOLLOW": 1} | settings
        loaded = {"LD_PRELOAD": self.mock, "LD_LIBRARY_PATH": self.mock.parent}
        return loaded | {name: value for name, value in mock.items() if value is not None}

    def job(self, words: list, ranks: int, code: int, settings: dict, folder: pathlib.Path | None = None) -> Run:
        folder = folder or self.fresh_folder()
        command = [
            self.program,
            *map(str, words),
            "--training.device=cuda",
            "--lr_scheduler.warmup_steps=0",
            "--metrics.log_freq=1",
            f"--job.dump_folder={folder}",
        ]
        return self.on_mock(command, folder, code, ranks, **settings)

    def on_mock(self, command: list, folder: pathlib.Path, code: int = OK, devices: int = 1, **settings) -> Run:
        ledgers = pathlib.Path(tempfile.mkdtemp(prefix="ledgers-", dir=self.folder))
        environment = clean_environment(**self.variables(devices, ledgers, **settings))
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace",
            timeout=TIME_LIMIT_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        run = Run(done.returncode, done.stdout, done.stderr, folder, 0)
        self.expect(run, code)
        run.ledgers = self.read_ledgers(ledgers)
        return run

    def read_ledgers(self, folder: pathlib.Path) -> list[dict]:
        """Of all processes that ended, in the order of their ranks; none had a trouble or a thread on another rank's GPU."""
        ledgers = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
        for name, ledger in ledgers.items():
            self.assertEqual(ledger["troubles"], {}, name)
            gpu = int(name.removeprefix("rank_")) if name.startswith("rank_") else 0
            self.assertEqual([call for call in ledger.get("threads", {}) if not call.startswith(f"GPU {gpu}: ")], [], name)
        return list(ledgers.values())

    def a_step_more(self, run, kind: str, first: int) -> collections.Counter:
        """What step first + 1 of `run(steps)` adds to what the steps before it ask of the GPU, by name."""
        few, more = run(first).ledgers[0], run(first + 1).ledgers[0]
        added = collections.Counter({name: count["times"] for name, count in more.get(kind, {}).items()})
        added.subtract({name: count["times"] for name, count in few.get(kind, {}).items()})
        return +added
