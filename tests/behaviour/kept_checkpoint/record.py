"""Records steps 5 to 8 of the build that TITAN_BINARY names: `record.py COMMIT`. If COMMIT is SAVED_BY, writes
checkpoints.tar.xz, too, from runs of job.toml to step 8. A checkpoint records paths, so the checkout was at /titan."""

from __future__ import annotations

import io
import json
import lzma
import pathlib
import re
import shutil
import sys
import tarfile
import unittest
from unittest import mock

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "reference"), str(TESTS / "behaviour")]

import kept_checkpoint_test as kept  # noqa: E402
from program import OK, ROOT  # noqa: E402


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


class Record(kept.KeptCheckpoint):
    commit = ""

    def runTest(self):
        continuation = json.loads(kept.CONTINUATION.read_text()) if kept.CONTINUATION.exists() else {}
        if self.commit == kept.SAVED_BY:
            self.save(continuation)
        case = kept.FP32  # without a checkpoint of its own
        result, run = self.resume(case, environment=kept.VERBOSE)
        continuation.setdefault(case.name, {})[self.commit] = {"processor": self.processor(run)} | result
        # A line for each fact, step and tensor.
        text = re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found[0].split()), json.dumps(continuation, indent=1))
        kept.CONTINUATION.write_text(text + "\n")

    def processor(self, run) -> dict[str, str]:
        return kept.processor_of(self.titan("--version"), run)

    def save(self, continuation: dict) -> None:
        folder = ROOT / "run"  # a checkpoint records the folder as it was given
        self.assertFalse(folder.exists())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for case in (kept.FLOAT8, kept.BFLOAT16):
                shutil.rmtree(folder, ignore_errors=True)
                with mock.patch.dict("os.environ", kept.VERBOSE):
                    run = self.titan(kept.JOB.relative_to(ROOT), *case.words, "--job.dump_folder=run")
                self.expect(run, OK)
                name = f"step-{kept.SAVED}"
                tar.add(folder / "checkpoint" / name, f"{case.checkpoint}/{name}", filter=nobodys)
                continuation[case.name] = {self.commit: {"processor": self.processor(run)} | kept.result_of(folder)}
        kept.CHECKPOINTS.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    Record.commit = sys.argv.pop()
    unittest.main(defaultTest="Record.runTest")
