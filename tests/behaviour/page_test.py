"""report.html: there during the run and after it, whole by itself; of several runs on demand."""

from __future__ import annotations

import html.parser
import json
import re
import signal
import unittest

from program import NON_FINITE, OK, VALIDATION, BehaviourTest
from rank_processes import RanksTest


class Page(html.parser.HTMLParser):
    """The elements of a page, and the data that its script draws from; fails on elements that are not closed in order."""

    EMPTY = {"meta", "path", "i"}

    def __init__(self, text: str):
        super().__init__()
        self.text, self.open, self.outside = text, [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open
        self.data = json.loads(re.search(r'<script type="application/json" id="runs">(.*?)</script>', text)[1])
        self.runs = self.data["runs"]
        self.status = self.runs[0]["status"][1]

    def handle_starttag(self, tag, attributes):
        self.outside += [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag, tag


class Report(BehaviourTest):
    def page(self, path) -> Page:
        page = Page(path.read_text())
        self.assertEqual(page.outside, [])
        return page

    def test_a_finished_run_leaves_a_whole_page_that_says_what_it_was(self):
        words = ["--job.description=<first> run", *VALIDATION]
        words += ["--validation.freq=4", "--validation.steps=1", "--validation.seq_len=64"]
        run = self.train(*words, steps=8)
        page = self.page(run.folder / "report.html")
        (shown,) = page.runs
        self.assertEqual(len(shown["series"]), 8)
        self.assertEqual(shown["series"]["validation_loss"]["x"], [1, 4, 8])
        self.assertEqual((shown["title"], page.status, shown["step"]), ("<first> run", "finished", 8))
        self.assertIn("llama3 debugmodel", shown["facts"]["model"])
        self.assertIn("<|begin_of_text|>", shown["facts"]["sample"])
        self.assertEqual(shown["config"]["training.steps"], "8")
        self.assertNotIn("http-equiv=\"refresh\"", page.text)
        facts = json.loads((run.folder / "run.json").read_text())
        self.assertEqual(facts["config"]["training"]["steps"], 8)
        self.assertEqual(run.messages()[-1], f"  report        {run.folder / 'report.html'}")
        self.assertEqual(sorted(path.name for path in run.folder.glob("*.tmp*")), [])

    def test_while_a_run_goes_on_the_page_is_whole_at_any_time(self):
        process, folder = self.open_endless_run()
        page = self.page(folder / "report.html")
        self.assertEqual(page.status, "running")
        self.assertIn("http-equiv=\"refresh\"", page.text)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        self.assertEqual(self.page(folder / "report.html").status, "stopped")

    def test_a_run_that_goes_on_shows_what_came_before(self):
        words = ["--checkpoint.enable", "--checkpoint.interval=3", "--checkpoint.last_save_model_only=false"]
        first = self.train(*words, steps=5)
        self.train(*words, "--checkpoint.load_step=3", steps=9, folder=first.folder)
        page = self.page(first.folder / "report.html")
        self.assertEqual(page.runs[0]["series"]["loss"]["x"], list(range(1, 10)))

    def test_a_run_that_ends_by_an_error_says_so(self):
        run = self.train("--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--training.max_norm=0", steps=20, exit_code=NON_FINITE)
        self.assertEqual(self.page(run.folder / "report.html").status, "ended by an error")

    def test_it_can_be_left_out(self):
        run = self.train("--metrics.no-report", steps=1)
        self.assertEqual([path.name for path in run.folder.glob("r*.*") if path.suffix in (".html", ".json")], [])

    def test_several_runs_are_shown_side_by_side(self):
        runs = [self.train(f"--optimizer.lr={rate}", steps=3) for rate in ("1e-3", "2e-3")]
        out = self.folder / "both.html"
        done = self.titan("report", *(run.folder for run in runs), "--out", out)
        self.expect(done, OK)
        self.assertEqual(done.output.strip(), str(out))
        page = self.page(out)
        self.assertEqual([one["name"] for one in page.runs], ["run-1", "run-2"])
        self.assertEqual([one["config"]["optimizer.lr"] for one in page.runs], ["0.001", "0.002"])

    def test_a_run_with_muon_shows_both_rates_and_the_size_of_updates_by_kind_of_matrix(self):
        words = ["--optimizer.name=Muon", "--optimizer.muon.dtype=float32", "--optimizer.lr=1e-3", "--optimizer.muon.lr=2e-2"]
        run = self.train(*words, steps=4)
        kinds = [f"statistics.update_rms.{kind}" for kind in ("w1", "w2", "w3", "wk", "wo", "wq", "wv")]

        def check(shown: dict) -> None:
            self.assertEqual(sorted(shown["statistics"]), ["statistics.muon_lr", *kinds])  # of each there is a chart
            rates = [shown["series"][key] for key in ("lr", "statistics.muon_lr")]
            self.assertEqual([one["x"] for one in rates], [[1, 2, 3, 4]] * 2)
            for adamw, muon in zip(*(one["y"] for one in rates), strict=True):
                self.assertAlmostEqual(muon, 20 * adamw, delta=1e-4 * muon)
            for kind in kinds:  # the first step has none before it
                self.assertEqual(shown["series"][kind]["x"], [2, 3, 4], kind)
                self.assertGreater(min(shown["series"][kind]["y"]), 0, kind)

        check(self.page(run.folder / "report.html").runs[0])
        self.expect(self.titan("report", run.folder), OK)
        check(self.page(run.folder / "report.html").runs[0])
        adamw, out = self.train(steps=4), self.folder / "compared.html"
        self.expect(self.titan("report", run.folder, adamw.folder, "--out", out), OK)
        both = self.page(out).runs
        check(both[0])
        self.assertEqual((both[1]["statistics"], "lr" in both[1]["series"]), ([], True))

    def test_of_one_run_the_page_lies_in_its_folder(self):
        words = [*VALIDATION, "--validation.freq=4", "--validation.steps=1"]
        run = self.train(*words, "--validation.seq_len=64", "--metrics.no-report", steps=8)
        for word in (run.folder / "metrics.jsonl", f"{run.folder}/"):
            done = self.titan("report", word)
            self.expect(done, OK)
            self.assertEqual(done.output.strip(), str(run.folder / "report.html"))
        page = self.page(run.folder / "report.html")
        series = page.runs[0]["series"]
        self.assertEqual(len(series), 8)
        self.assertEqual(series["loss"]["x"], list(range(1, 9)))
        self.assertEqual(len(series["loss"]["y"]), 8)

    def test_a_place_that_cannot_be_written_to_costs_the_page_and_not_the_run(self):
        folder = self.fresh_folder()
        (folder / "report.html").mkdir(parents=True)
        run = self.train(folder=folder)
        warnings = [line for line in run.messages("WARNING") if "report" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn(str(folder / "report.html"), warnings[0])


class ReportOfRanks(RanksTest):
    def test_rank_0_keeps_the_page_and_names_the_layout(self):
        run = self.launch_training(2, "--training.steps=2", "--parallelism.data_parallel_shard_degree=-1")
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual([path.parent.name for path in self.folder.rglob("report.html")], ["run"])
        page = Page((self.folder / "run" / "report.html").read_text())
        self.assertEqual(page.runs[0]["facts"]["layout"], "dp_shard 2")


if __name__ == "__main__":
    unittest.main()
