"""report.html as a browser draws it: at a phone's and a desktop's width, light and dark, during the run and after it."""

from __future__ import annotations

import json
import pathlib
import signal
import time
import unittest

from browser import Browser
from checkpoint_runs import REQUEUE
from program import FULL, NON_FINITE, OK, VALIDATION, BehaviourTest

LOOKS = [(390, "dark"), (1280, "light")]
if FULL:
    LOOKS += [(390, "light"), (1280, "dark"), (768, "light"), (2560, "dark")]
TITLES = ["Loss", "Learning rate", "Gradient norm", "Throughput", "Peak memory", "Time of a step", "Waiting for data, per step"]
# What is wrong with what is drawn, as sentences. Contrasts as in the Web Content Accessibility Guidelines 2, level AA.
WRONG = """((width) => {
const wrong = [], say = (...words) => wrong.push(words.join(" "));
const rgba = text => { const v = text.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v };
const ground = element => {
  for (; element; element = element.parentElement) {
    const colour = rgba(getComputedStyle(element).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] > 0) say("a ground that shines through", element.className);
  }
  return [255, 255, 255, 1];
};
const light = colour => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
  const v = colour[i] / 255;
  return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
}, 0);
const contrast = (one, other) => {
  const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
};
if (document.scrollingElement.scrollWidth > width) say("scrolls sideways:", document.scrollingElement.scrollWidth);
const texts = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walk.nextNode());) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility() || element.matches("script,style")) continue;
  const text = node.data.trim().slice(0, 30), ratio = contrast(rgba(getComputedStyle(element).color), ground(element));
  if (ratio < 4.5) say("contrast", ratio.toFixed(2), "of", text);
  if (element.closest(".scroll,pre,.tip")) continue;
  const range = document.createRange(), box = element.closest(".tile,figure,.card,main").getBoundingClientRect();
  range.selectNodeContents(node);
  for (const r of range.getClientRects()) {
    if (r.left < box.left || r.right > box.right || r.top < box.top || r.bottom > box.bottom) say("sticks out:", text);
    for (const [other, o] of texts) {
      const over = Math.min(r.right, o.right) - Math.max(r.left, o.left), down = Math.min(r.bottom, o.bottom) - Math.max(r.top, o.top);
      if (over > 0.5 && down > 0.5) say("one over the other:", text, "|", other);
    }
    texts.push([text, r]);
  }
}
for (const line of document.querySelectorAll(".line,.dots")) {
  const ratio = contrast(rgba(getComputedStyle(line).stroke), ground(line.closest("figure")));
  if (ratio < 3) say("contrast", ratio.toFixed(2), "of a", line.className.baseVal);
}
return wrong;
})"""
# How many pixels of a picture of the page have the colours of its curves, chart by chart.
PIXELS = """(async picture => {
const image = await createImageBitmap(await (await fetch("data:image/png;base64," + picture)).blob());
const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
context.drawImage(image, 0, 0);
return [...document.querySelectorAll(".plot")].map(plot => {
  const box = plot.getBoundingClientRect(), colours = [...plot.querySelectorAll(".line,.dots")]
    .map(line => getComputedStyle(line).stroke.match(/\\d+/g).map(Number));
  const data = context.getImageData(box.left - 4, box.top + scrollY - 4, box.width + 8, box.height + 8).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    count += colours.some(colour => colour.every((v, k) => Math.abs(v - data[i + k]) < 24));
  }
  return count;
});
})"""


class Drawn(BehaviourTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def count_marks(self) -> list[int]:
        """Pixels in the colours of each chart's curves."""
        width, height = self.browser.run("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        picture = self.browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        return self.browser.run(f"{PIXELS}({json.dumps(picture)})")

    def assert_told_nothing(self, path: pathlib.Path) -> None:
        """No error, no warning, and nothing loaded but the page."""
        for event in self.browser.events:
            self.assertNotIn(event["method"], ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"), event)
            if event["method"] == "Network.requestWillBeSent":
                self.assertEqual(event["params"]["request"]["url"], path.as_uri())

    def assert_right(self, width: int, charts: int) -> None:
        """What is open looks as it should."""
        self.assertEqual(self.browser.run(f"{WRONG}({width})"), [])
        self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)  # what is shown at the pointer has these colours
        marks = self.count_marks()
        self.assertEqual(len(marks), charts)
        self.assertGreater(min(marks), 8, marks)  # a single dot has more

    def point_everywhere(self, width: int, charts: int) -> None:
        """The numbers at the pointer can be read, wherever it is."""
        for at in (0, 0.3, 0.49, 0.51, 0.8, 1):
            for number in {0, charts - 1}:
                plot = f"document.querySelectorAll('.plot')[{number}]"
                self.browser.run(f"{plot}.scrollIntoView({{block: 'center'}})")
                point = f"(b => [b.left + 1 + {at} * (b.width - 2), b.top + b.height / 2])({plot}.getBoundingClientRect())"
                x, y = self.browser.run(point)
                self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
                self.assertRegex(self.browser.run(f"{plot}.querySelector('.tip').textContent"), r"^step \d.*\d")
                ends = "(b => [b.left, b.right])(document.querySelector('.tip:not([hidden])').getBoundingClientRect())"
                left, right = self.browser.run(ends)
                self.assertTrue(0 <= left < right <= width, (left, right))

    def look(self, path: pathlib.Path, charts: int = 7) -> None:
        for width, scheme in LOOKS:
            with self.subTest(path.parent.name, width=width, scheme=scheme):
                self.browser.open(path, width, scheme)
                self.browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
                self.point_everywhere(width, charts)
                self.assert_told_nothing(path)
                self.assert_right(width, charts)

    def texts(self, selector: str) -> list[str]:
        return self.browser.run(f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)")

    def half_a_minute_later(self) -> None:
        """The page has loaded itself again, without the waiting."""
        self.browser.events.clear()
        milliseconds = 30_000
        limit = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.browser.events):
            self.browser.call("Emulation.setVirtualTimePolicy", policy="advance", budget=milliseconds)
            self.browser.wait_for("Emulation.virtualTimeBudgetExpired")
            milliseconds = 100
            self.assertLess(time.monotonic(), limit, "it does not load itself again")
            time.sleep(0.05)  # files are read in the world's time

    def test_a_finished_run_with_validations_and_a_long_description_that_looks_like_markup(self):
        description = "<b>x</b><script> " + "a rather long description " * 5 + "a" * 90
        words = ["--job.description=" + description, *VALIDATION, "--validation.freq=4"]
        words += ["--validation.steps=1", "--validation.seq_len=64"]
        self.look(self.train(*words, steps=12).folder / "report.html")
        self.assertEqual(self.texts(".badge"), ["finished"])
        self.assertEqual(self.texts("h1"), [description])
        self.assertEqual(self.texts(".tile b")[0], "12of 12")
        self.assertNotIn("time left", self.texts(".tile span"))
        titles = "[...document.querySelectorAll('figcaption')].map(one => one.firstChild.data)"
        self.assertEqual(self.browser.run(titles), TITLES)
        self.assertEqual(self.browser.run("document.querySelectorAll('.dots.c1').length"), 1)
        self.assertEqual([text for text in self.texts("figcaption") if "dots: validation" in text], self.texts("figcaption")[:1])
        (options,) = self.texts("details pre")
        self.assertIn("[optimizer]\n", options)
        self.assertIn("\nlr = ", options)

    def test_two_runs_with_the_options_that_differ(self):
        runs = [self.train(f"--optimizer.lr={rate}", steps=3).folder for rate in (0.001, 0.002)]
        self.expect(self.titan("report", *runs, "--out", self.folder / "both.html"), OK)
        self.look(self.folder / "both.html")
        self.assertEqual(self.texts("h1"), ["2 runs side by side"])
        rows = "[...document.querySelectorAll('tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        options = {option: values for option, *values in self.browser.run(rows)}
        self.assertEqual(options["optimizer.lr"], ["0.001", "0.002"])
        self.assertNotIn("optimizer.name", options, "the runs have the same")
        self.assertNotIn("[optimizer]", self.browser.run("document.querySelector('main').textContent"))

    def test_statistics_of_the_model_have_a_chart_each(self):
        """No model in the repository reports any, so they are added to what a run recorded."""
        run = self.train(steps=12)
        path = run.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["statistics"] = {"balance": 0.5 / line["step"], "load of <experts>": [line["step"], 12.0 - line["step"]]}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.expect(self.titan("report", run.folder, "--out", self.folder / "statistics.html"), OK)
        self.look(self.folder / "statistics.html", charts=10)
        titles = self.browser.run("[...document.querySelectorAll('figcaption')].map(one => one.firstChild.data)")
        self.assertEqual(titles, [*TITLES, "balance", "load of <experts>[0]", "load of <experts>[1]"])

    def test_with_muon_both_rates_and_the_updates_of_each_kind_of_matrix_have_a_chart(self):
        run = self.train("--optimizer.name=Muon", "--optimizer.muon.lr=1e-2", steps=12)
        kinds = [f"update_rms.{kind}" for kind in ("w1", "w2", "w3", "wk", "wo", "wq", "wv")]
        self.look(run.folder / "report.html", charts=len(TITLES) + 1 + len(kinds))
        titles = self.browser.run("[...document.querySelectorAll('figcaption')].map(one => one.firstChild.data)")
        self.assertEqual(titles, [*TITLES, "muon_lr", *kinds])
        newest = dict(zip(titles, self.texts("figcaption b"), strict=True))
        self.assertNotEqual(newest["Learning rate"], newest["muon_lr"])

    def test_no_two_labels_of_an_axis_are_alike(self):
        self.browser.open(self.train(steps=1).folder / "report.html")
        for arguments in ("1.7435, 1.74359", "1000000, 1000009, true"):
            labels = self.browser.run(f"ticks({arguments}).map(([, words]) => words)")
            self.assertGreater(len(labels), 2, labels)
            self.assertEqual(len(set(labels)), len(labels), labels)

    def test_a_drag_zooms_all_charts_and_a_double_click_shows_all_steps(self):
        self.browser.open(self.train(steps=40).folder / "report.html", 1280)
        plot = "document.querySelectorAll('.plot')[1]"
        self.browser.run(f"{plot}.scrollIntoView({{block: 'center'}})")
        left, width, y = self.browser.run(f"(b => [b.left, b.width, b.top + b.height / 2])({plot}.getBoundingClientRect())")
        labels = "[...document.querySelectorAll('.xs')].map(axis => axis.textContent)"
        before = self.browser.run(labels)

        def mouse(kind: str, share: float, clicks: int = 1) -> None:
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=left + share * width, y=y, button="left",
                              buttons=0 if kind == "mouseReleased" else 1, clickCount=clicks)  # fmt: skip

        mouse("mousePressed", 0.25), mouse("mouseMoved", 0.5), mouse("mouseMoved", 0.75), mouse("mouseReleased", 0.75)
        self.assertEqual(self.browser.run("view"), [11, 30])
        after = self.browser.run(labels)
        self.assertEqual(len(set(after)), 1, "all charts show the same steps")
        self.assertNotEqual(after, before)
        for clicks in (1, 2):
            mouse("mousePressed", 0.5, clicks), mouse("mouseReleased", 0.5, clicks)
        self.assertEqual(self.browser.run("view"), [1, 40])
        self.assertEqual(self.browser.run(labels), before)

    def test_a_run_of_a_single_step(self):
        self.look(self.train(steps=1).folder / "report.html")
        self.assertEqual(self.browser.run("document.querySelectorAll('.dots').length"), 7, "a line of one point shows nothing")

    def test_a_run_whose_numbers_cease_to_be_finite(self):
        words = ["--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--training.max_norm=0"]
        self.look(self.train(*words, steps=20, exit_code=NON_FINITE).folder / "report.html")
        self.assertEqual(self.texts(".badge"), ["ended by an error"])
        self.look(self.train(*words, "--training.non_finite=skip", "--training.max_skipped_steps=0", steps=20).folder / "report.html")
        self.assertIn("NaN", self.texts(".tile b"))
        self.assertTrue(any("loss is not finite" in row for row in self.texts("tr")))
        self.assertEqual(self.browser.run("view"), [1, 20], "steps without a loss are shown, too")
        self.assertEqual(len(set(self.texts(".xs"))), 1, "all charts show the same steps")

    def test_a_run_that_was_stopped_and_goes_on(self):
        words = ["--checkpoint.enable", "--checkpoint.interval=1000000"]
        process, folder = self.open_endless_run(*words)
        path = folder / "report.html"
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), REQUEUE)
        self.look(path)
        self.assertEqual(self.texts(".badge"), ["stopped"])
        step = int(self.texts(".tile b")[0].split("of")[0].replace(",", ""))
        self.train(*words, steps=step + 5, folder=path.parent)
        self.look(path)
        self.assertEqual(self.texts(".badge"), ["finished"])
        self.assertEqual(self.browser.run("runs[0].series.loss.a"), 1)

    def test_eight_runs_with_long_names_side_by_side(self):
        folder, run = self.folder, self.train(steps=5).folder
        names = [f"2026-11-{day}-llama3-with-a-name-as-people-give-them-lr-3e-{day}" for day in range(11, 19)]
        for name in names:
            (folder / name).symlink_to(run)
        self.expect(self.titan("report", *(folder / name for name in names), "--out", folder / "all.html"), OK)
        self.look(folder / "all.html")
        self.assertEqual(len(self.texts(".legend li")), 8)
        self.assertEqual(self.browser.run("document.querySelectorAll('.line').length"), 8 * 7)

    def test_a_page_that_stays_open_follows_the_run_and_keeps_its_place(self):
        process, folder = self.open_endless_run()
        path = folder / "report.html"
        self.browser.open(path, 390)
        self.browser.run("document.querySelector('details').open = true")
        step = self.texts(".tile b")[0]
        written = path.stat().st_mtime_ns
        self.wait_until(lambda: path.stat().st_mtime_ns != written, "a newer page")
        self.browser.run("scrollTo(0, 700)")
        self.half_a_minute_later()
        self.assertNotEqual(self.texts(".tile b")[0], step)
        self.assertEqual(self.texts(".badge"), ["running"])
        self.assertIn("time left", self.texts(".tile span"))
        self.assertEqual(self.browser.run("[scrollY, document.querySelector('details').open]"), [700, True])
        self.assert_told_nothing(path)
        self.assert_right(390, 7)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        self.half_a_minute_later()
        self.assertEqual(self.texts(".badge"), ["stopped"])
        self.assertNotIn("time left", self.texts(".tile span"))

    def test_a_run_that_has_been_silent_for_ten_minutes_is_marked(self):
        process, folder = self.open_endless_run()
        path = folder / "report.html"
        process.kill()
        process.wait()
        self.browser.open(path)
        self.assertEqual(self.texts(".badge"), ["running"])
        self.browser.open(path, at_once="const now = Date.now; Date.now = () => now() + 11 * 60e3")
        self.assertEqual(self.texts(".badge"), ["silent for 11 min"])
        self.assert_right(1280, 7)


if __name__ == "__main__":
    unittest.main()
