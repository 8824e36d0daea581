"""titan_train profile summarize, on traces that torch.profiler has written and on what is none."""

from __future__ import annotations

import gzip
import re
import unittest

import torch
from program import BAD_CONFIG, BAD_DATA, OK, BehaviourTest


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

    def test_what_is_no_trace_is_refused_with_its_path(self):
        for content in ("", "{", "[]", '{"traceEvents": []}', b"\x1f\x8b\x08\x00 broken"):
            path = self.write("trace.json", content)
            run = self.titan("profile", "summarize", path)
            self.expect(run, BAD_DATA)
            self.assertIn(str(path), run.errors)
        page = self.write("report.html", "<!doctype html>\n<title>a page</title>\n")
        metrics = self.write("metrics.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n')
        for path, says in ((page, "it is no JSON, or was cut off"), (metrics, "it is no JSON, or was cut off"),
                           (self.write("run.json", '{"config": {}}'), "holds no events of a profiler"),
                           (self.folder, "Is a directory"), (self.folder / "none.json", "No such file")):  # fmt: skip
            run = self.titan("profile", "summarize", path)
            self.expect(run, BAD_DATA)
            self.assertIn(f"{path}", run.errors)
            self.assertIn(says, run.errors)
            self.assertIn("Name a trace", run.errors)
            self.assertNotIn("json.exception", run.errors)
            self.assertLess(len(run.errors), 600)
        for words in ((), ("summarize",), ("sumarize", "x"), ("summarize", "x", "--top", "0")):
            self.expect(self.titan("profile", *words), BAD_CONFIG)


if __name__ == "__main__":
    unittest.main()
