"""Tests of the script that makes docs/support.md: it must not show what no test has shown."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import support_matrix  # noqa: E402
from support_matrix import Feature, Part  # noqa: E402

OUTCOMES = {
    "ops_test: Norm.Works/0 ((rmsnorm, 3))": "passed",
    "ops_test: Norm.Works/1 ((layernorm, 3))": "failed",
    "ops_test: Rotary.Works": "passed",
    "data_test: Files.NeedTheSharedFolder": "skipped",
}


def problems(*tests: str) -> list[str]:
    return support_matrix.problems_of(Feature("a feature", list(tests)), OUTCOMES)


class Rows(unittest.TestCase):
    def test_a_feature_whose_tests_passed_has_no_problem(self):
        self.assertEqual(problems("ops_test: Rotary.*", "ops_test: Norm.* ((rmsnorm,*"), [])

    def test_a_test_that_is_gone_failed_or_left_out_is_told(self):
        self.assertIn("there is no such test", problems("ops_test: Rotary.Worked")[0])
        self.assertIn("failed: ops_test: Norm.Works/1", problems("ops_test: Norm.*")[0])
        self.assertIn("of 1 tests none ran", problems("data_test: Files.*")[0])

    def test_tests_that_may_be_skipped_must_exist_and_must_not_fail(self):
        def problems_of(pattern: str) -> list[str]:
            return support_matrix.problems_of(Feature("a feature", skippable=[pattern]), OUTCOMES)

        self.assertEqual(problems_of("data_test: Files.*"), [])
        self.assertIn("there is no such test", problems_of("data_test: Folders.*")[0])
        self.assertIn("failed: ops_test: Norm.Works/1", problems_of("ops_test: Norm.*")[0])

    def test_every_pattern_has_to_hold(self):
        self.assertEqual(len(problems("ops_test: Rotary.*", "ops_test: Nothing.*")), 1)

    def test_a_feature_without_tests_or_with_a_pattern_for_all_is_refused(self):
        self.assertIn("no tests are named", problems()[0])
        for pattern in ("*", "*: Rotary.*", "ops*", "[a-z]*"):
            self.assertIn("does not begin with the whole name", problems(pattern)[0], pattern)

    def test_the_features_of_this_repository_can_be_read(self):
        features = [feature for part in support_matrix.read_features(support_matrix.FEATURES) for feature in part.features]
        self.assertGreater(len(features), 30)
        self.assertEqual(len({feature.name for feature in features}), len(features))


class Outcomes(unittest.TestCase):
    def test_reports_of_both_kinds_become_one_table(self):
        cases = [
            {"name": "Works", "result": "COMPLETED"},
            {"name": "Works/0", "result": "COMPLETED", "value_param": "(rmsnorm, 3)"},
            {"name": "Fails", "result": "COMPLETED", "value_param": "odd", "failures": [{}]},
            {"name": "Waits", "result": "SKIPPED"},
        ]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            report = {"testsuites": [{"name": "Norm", "testsuite": cases}]}
            (folder / "ops_test.json").write_text(json.dumps(report))
            (folder / "python-alone.xml").write_text(
                '<testsuites><testsuite><testcase classname="reference.text_test.Text" name="test_it" />'
                '<testcase classname="reference.text_test.Text" name="test_not"><failure /></testcase>'
                '<testcase classname="reference.a_oracle" name="a_oracle"><skipped /></testcase></testsuite></testsuites>'
            )
            self.assertEqual(
                support_matrix.read_outcomes(folder),
                {
                    "ops_test: Norm.Works": "passed",
                    "ops_test: Norm.Works/0 (rmsnorm, 3)": "passed",
                    "ops_test: Norm.Fails (odd)": "failed",
                    "ops_test: Norm.Waits": "skipped",
                    "text_test: Text.test_it": "passed",
                    "text_test: Text.test_not": "failed",
                    "a_oracle": "skipped",
                },
            )


class Page(unittest.TestCase):
    def test_a_row_says_what_is_known_of_each_device(self):
        parts = [
            Part("Models", [Feature("one", ["a_test: A.*"]), Feature("two", ["a_test: B.*"], built=False),
                            Feature("of a GPU", skippable=["a_test: D.*"])]),
            Part("Data", [Feature("three", ["a_test: C.*"])], on_device=False),
        ]
        page = support_matrix.render(parts)
        self.assertIn("| one | tested | compiles only | `a_test: A.*` |", page)
        self.assertIn("| two | not built | not built | `a_test: B.*` |", page)
        self.assertIn("| of a GPU | — | compiles only | `a_test: D.*` |", page)
        self.assertIn("| three | tested | — | `a_test: C.*` |", page)


if __name__ == "__main__":
    unittest.main()
