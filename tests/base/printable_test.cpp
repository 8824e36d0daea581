#include "titan/base/text.h"

#include <gtest/gtest.h>

#include <sstream>

namespace titan {
namespace {

TEST(Printable, ControlCharactersMarksOfDirectionAndBytesThatAreNoTextBecomeEscapes) {
  EXPECT_EQ(printable("a\x1b[2J\a\x7f\tb\nc\r"), R"(a\x1b[2J\x07\x7f\tb\nc\r)");
  EXPECT_EQ(printable("\u009b31m \u202e \u2066 \u2028"), R"(\u009b31m \u202e \u2066 \u2028)");
  EXPECT_EQ(printable(std::string_view("\0\x9b\xff\xe2\x82", 5)), R"(\x00\x9b\xff\xe2\x82)");
  EXPECT_EQ(printable("\xe0\x80\x9b"), R"(\x1b)") << "a longer form of the same character";
  for (const char* text : {"", "plain \\x1b", "öl, 漢字 😀 … ≥"}) EXPECT_EQ(printable(text), text);
}

TEST(Printable, LinesStayAndNoneAfterTheFirstPassesForAMessageOfItsOwn) {
  EXPECT_EQ(printable_lines("one\n[titan] two\x1b\n"), "one\n  [titan] two\\x1b\n  ");
}

TEST(Printable, AStreamWritesEscapesAsLongAsItIsWatched) {
  std::ostringstream out;
  {
    const PrintableStream watched(out);
    out << "a\tb\x1b" << 'c' << '\a' << 7 << "\u009b" << std::endl;
  }
  out << "\x1b";
  EXPECT_EQ(out.str(), "a\tb\\x1bc\\x077\\u009b\n\x1b");
}

}  // namespace
}  // namespace titan
