"""The page of one run, or of several side by side: whole by itself."""

from __future__ import annotations

import html.parser
import json
import re
import unittest

from program import BAD_CONFIG, BAD_DATA, OK, STORAGE, BehaviourTest


class Page(html.parser.HTMLParser):
    """The elements of a page; fails on those that are not closed in order."""

    EMPTY = {"meta", "path", "i"}

    def __init__(self, text: str):
        super().__init__()
        self.text, self.words, self.open, self.figures, self.outside = text, [], [], 0, []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.figures += tag == "figure"
        self.outside += [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def says(self, words: str) -> bool:
        return words in " ".join(self.words)


class Report(BehaviourTest):
    def page(self, path) -> Page:
        page = Page(path.read_text())
        self.assertEqual(page.outside, [])
        self.assertNotIn("http:", page.text)
        return page

    def test_of_one_run_the_page_lies_in_its_folder(self):
        words = ["--validation.enable", "--validation.dataset=stories", "--validation.freq=4", "--validation.steps=1"]
        run = self.train(*words, "--validation.seq_len=64", steps=8)
        for word in (run.folder / "metrics.jsonl", f"{run.folder}/"):
            done = self.titan("report", word)
            self.expect(done, OK)
            self.assertEqual(done.output.strip(), str(run.folder / "report.html"))
        page = self.page(run.folder / "report.html")
        self.assertEqual(page.figures, 7)
        self.assertTrue(page.says("dots: validation"))
        curve = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page.text)[1])
        self.assertEqual(curve["d"][0]["x"], list(range(1, 9)))
        self.assertEqual(len(curve["d"][0]["y"]), 8)

    def test_several_runs_are_shown_side_by_side(self):
        runs = [self.train(f"--optimizer.lr={rate}", steps=3) for rate in ("1e-3", "2e-3")]
        out = self.folder / "both.html"
        done = self.titan("report", *(run.folder for run in runs), "--out", out)
        self.expect(done, OK)
        self.assertEqual(done.output.strip(), str(out))
        page = self.page(out)
        for said in ("2 runs side by side", "run-1", "run-2"):
            self.assertTrue(page.says(said), said)

    def test_what_is_no_run_is_refused_with_its_place(self):
        (self.folder / "empty").mkdir()
        (self.folder / "begun").mkdir()
        (self.folder / "begun" / "metrics.jsonl").write_text("")
        (self.folder / "in the way").mkdir()
        run = self.train(steps=1)
        for words, code, says in (
            ([], BAD_CONFIG, "RUN"),
            ([self.folder / "empty"], BAD_DATA, "holds no metrics.jsonl"),
            ([self.folder / "none"], BAD_DATA, "holds no metrics.jsonl"),
            ([self.folder / "begun"], BAD_DATA, "has no line of a step yet"),
            ([run.folder, "--out", self.folder / "none" / "page.html"], STORAGE, "--out"),
            ([run.folder, "--out", self.folder / "in the way"], STORAGE, "Is a directory"),
            ([run.folder] * 9, BAD_CONFIG, "report: "),
        ):
            refused = self.titan("report", *words)
            self.expect(refused, code)
            self.assertIn(says, refused.errors)


if __name__ == "__main__":
    unittest.main()
