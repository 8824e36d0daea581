#include "titan/train/start_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace titan {
namespace {

TEST(ParameterGroupTable, ShowsPatternTensorsParametersAndMultipliers) {
  Parameter a({"a", {1000, 4}, {}}), b({"b", {10}, {}}), c({"c", {6}, {}});
  const std::vector<Parameter*> parameters{&a, &b, &c};
  const std::vector<ParameterGroup> groups{{"", 1, 1, {0}}, {"norm", 0.5, 0, {1, 2}}};
  const std::vector<std::string> lines = parameter_group_table(groups, parameters);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "parameter groups:                          tensors    parameters   lr x   decay x");
  EXPECT_EQ(lines[1], "  (all others)                                   1         4,000      1        1");
  EXPECT_EQ(lines[2], "  norm                                           2            16    0.5        0");
}

TEST(Excerpt, IsOneLineInWhichNothingMovesTheCursor) {
  EXPECT_EQ(excerpt("one\ntwo\tthree\r\x1b[31mred\x7f"), "one two three  [31mred ");
  EXPECT_EQ(excerpt("a\u009b31mb\u2028c\u202ed\u2066e"), "a 31mb c d e");
}

TEST(Excerpt, OrdinaryTextOfAnyScriptIsLeftAlone) {
  const std::string text = "déjà vu · 你好 · שלום · 🦔";
  EXPECT_EQ(excerpt(text), text);
}

TEST(Excerpt, AnIncompleteCharacterBecomesAReplacement) { EXPECT_EQ(excerpt("caf\xc3"), "caf\uFFFD"); }

TEST(Excerpt, LongTextIsCutAtACharacterAndSaysSo) {
  std::string text, expected;
  for (int i = 0; i < 200; ++i) text += "é";
  for (int i = 0; i < 120; ++i) expected += "é";
  EXPECT_EQ(excerpt(text), expected + "…");
  EXPECT_EQ(excerpt(expected), expected);
}

TEST(FirstLoss, IsExplainedOnlyWhereItCannotBeThatOfTheWeightsThatWereMeant) {
  struct Case {
    double loss;
    bool is_trained, is_fresh;
    const char* says;  // empty: nothing
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // ln 2048 = 7.62
  for (const auto& [loss, is_trained, is_fresh, says] : std::vector<Case>{{7.6, false, true, ""},
                                                                          {8.3, false, true, ""},
                                                                          {12, false, true, "too wide"},
                                                                          {4, false, true, "too low"},
                                                                          {4, true, false, ""},
                                                                          {7.6, true, false, "probably wrong"},
                                                                          {30, true, false, "probably wrong"},
                                                                          {7.6, false, false, ""},
                                                                          {kInfinity, true, false, ""}}) {
    const std::optional<std::string> said = explain_first_loss(loss, 2048, is_trained, is_fresh);
    EXPECT_EQ(said.has_value(), *says != '\0') << loss;
    if (!said) continue;
    EXPECT_NE(said->find(says), std::string::npos) << *said;
    EXPECT_NE(said->find("ln V = 7.62"), std::string::npos) << *said;
  }
}

}  // namespace
}  // namespace titan
