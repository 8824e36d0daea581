"""titan_train profile summarize, on traces that torch.profiler has written and on what is none."""

from __future__ import annotations

import gzip
import re
import unittest

import torch
from program import OK, BehaviourTest


class Traces(BehaviourTest):
    def trace(self):
        """Two steps of torch.profiler, each with two numbered parts."""
        path = self.folder / "trace.json"
        matrix = torch.ones(64, 64)
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=schedule,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(3):
                for part in range(2):
                    with torch.profiler.record_function(f"forward layers.{part}"):
                        torch.mm(matrix, matrix)
                profiler.step()
        return path

    def test_a_summary_shows_parts_operations_and_gaps(self):
        path = self.trace()
        zipped = self.folder / "trace.json.gz"
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        plain, packed = (self.titan("profile", "summarize", file, "--top", 5) for file in (path, zipped))
        self.expect(plain, OK)
        self.assertEqual(plain.output, packed.output)
        for words in (
            r"^2 steps, [\d.]+ ms; the main thread is in operations",
            r"^ +forward layers\.\* +4 ",
            r"^ +aten::mm +4 ",
        ):
            self.assertRegex(plain.output, re.compile(words, re.MULTILINE))
        self.assertIn("Main thread in no operation", plain.output)
        self.assertLessEqual(max(map(len, plain.output.splitlines())), 120)


if __name__ == "__main__":
    unittest.main()
