#include "src/corpus/surrogate_escapes.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

/// What becomes of `json`, after checking how many escapes were replaced.
std::string repaired(std::string json, int64_t expected) {
  EXPECT_EQ(repair_surrogate_escapes(json), expected) << json;
  return json;
}

TEST(SurrogateEscapes, HalvesWithoutAPartnerAreReplaced) {
  EXPECT_EQ(repaired(R"("\ud83d")", 1), R"("\ufffd")");
  EXPECT_EQ(repaired(R"("\uDD94 x")", 1), R"("\ufffd x")");
  EXPECT_EQ(repaired(R"("\ud83d\ud83d\udd94")", 1), R"("\ufffd\ud83d\udd94")");
  EXPECT_EQ(repaired(R"("\udd94\ud83d")", 2), R"("\ufffd\ufffd")");
  EXPECT_EQ(repaired(R"("\ud83d\n")", 1), R"("\ufffd\n")");
}

TEST(SurrogateEscapes, PairsAndOtherEscapesAreLeftAlone) {
  for (const char* json :
       {R"("\ud83e\udd94")", R"("\u00e9\n\"\\")", R"("")", R"("no escape")", R"("\uffff\ud7ff\ue000")"}) {
    EXPECT_EQ(repaired(json, 0), json);
  }
}

TEST(SurrogateEscapes, AnEscapedBackslashBeginsNoEscape) {
  EXPECT_EQ(repaired(R"("\\ud83d")", 0), R"("\\ud83d")");
  EXPECT_EQ(repaired(R"("\\\ud83d")", 1), R"("\\\ufffd")");
}

TEST(SurrogateEscapes, TextThatIsNoJsonIsNoTrouble) {
  for (const char* json : {"\\", "\\u", "\\ud83", "\\uzzzz", "\\u+123", "\\\\\\"}) EXPECT_EQ(repaired(json, 0), json);
  EXPECT_EQ(repaired("\\ud83d\\udd9", 1), "\\ufffd\\udd9");
}

}  // namespace
}  // namespace titan
