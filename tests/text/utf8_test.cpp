#include "titan/text/utf8.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

const std::string kMark = "\xEF\xBF\xBD";

std::string repaired(std::string text, int64_t expected_count) {
  EXPECT_EQ(repair_utf8(text), expected_count);
  EXPECT_EQ(valid_utf8_length(text), text.size());
  return text;
}

TEST(Utf8, ValidTextOfEveryLengthOfCharacterIsLeftAlone) {
  std::string text = "plain ASCII that is longer than eight bytes, é, 漢, 🙂, \xF4\x8F\xBF\xBF";
  EXPECT_EQ(valid_utf8_length(text), text.size());
  EXPECT_EQ(repaired(text, 0), text);
}

// The expected texts are what Python's decode("utf-8", "replace") gives.
TEST(Utf8, MalformedSequencesBecomeAsManyReplacementCharactersAsInPython) {
  EXPECT_EQ(repaired("a\x80z", 1), "a" + kMark + "z");
  EXPECT_EQ(repaired("\xC0\xAF", 2), kMark + kMark);                          // an overlong form: both bytes are wrong
  EXPECT_EQ(repaired("\xED\xA0\x80", 3), kMark + kMark + kMark);              // a surrogate
  EXPECT_EQ(repaired("\xE2\x82", 1), kMark);                                  // cut short: one sequence
  EXPECT_EQ(repaired("\xF0\x9F\x99x", 1), kMark + "x");                       // three good bytes, the fourth missing
  EXPECT_EQ(repaired("\xF4\x90\x80\x80", 4), kMark + kMark + kMark + kMark);  // above U+10FFFF
  EXPECT_EQ(repaired("\xE2\x28\xA1", 2), kMark + "(" + kMark);
  EXPECT_EQ(repaired("\xFF\xC3\xA9", 1), kMark + "é");
}

TEST(Utf8, ValidPartStopsBeforeTheFirstMalformedByte) {
  EXPECT_EQ(valid_utf8_length("0123456789é\xFFz"), 12u);
  EXPECT_EQ(valid_utf8_length("\xC3"), 0u);
}

TEST(Utf8, ValidTextIsNotCopied) {
  std::string storage;
  std::string text = "valid";
  EXPECT_EQ(valid_utf8(text, storage).data(), text.data());
  EXPECT_EQ(valid_utf8("b\xFF", storage), "b" + kMark);
}

TEST(Utf8, CodePointsSurviveARoundTrip) {
  for (char32_t point :
       {U'\0', U'a', U'\x7F', U'\x80', U'é', U'\u07FF', U'\u0800', U'漢', U'\uFFFF', U'\U00010000', U'\U0010FFFF'}) {
    std::string text;
    append_utf8(point, text);
    EXPECT_EQ(text.size(), utf8_length(static_cast<unsigned char>(text[0])));
    EXPECT_EQ(first_code_point(text), point);
  }
}

TEST(Utf8, StrippingIsThatOfPython) {
  const std::string text = "\u3000\x1c a \u200b\u2003\n";  // a zero-width space is none
  EXPECT_EQ(strip_characters(text), "a \u200b");
  EXPECT_EQ(strip_characters(text, nullptr, /*left=*/false), "\u3000\x1c a \u200b");
  EXPECT_EQ(strip_characters(text, nullptr, /*left=*/true, /*right=*/false), "a \u200b\u2003\n");
  const std::string set = "\u3000\n\u2003";
  EXPECT_EQ(strip_characters(text, &set), "\x1c a \u200b");
  EXPECT_EQ(strip_characters(" \u2003"), "");
}

TEST(Utf8, AdvancingCountsCharactersNotBytes) {
  std::string text = "aé漢🙂bcdefgh漢漢漢漢漢漢漢漢é";  // 20 characters
  size_t at = 0;
  for (int64_t count = 0; count <= 20; ++count) {
    EXPECT_EQ(advance_characters(text, 0, count), at) << count;
    if (at < text.size()) at += utf8_length(static_cast<unsigned char>(text[at]));
  }
  EXPECT_EQ(advance_characters(text, 0, 1000), text.size());
  EXPECT_EQ(advance_characters(text, 3, 1), 6u);
}

}  // namespace
}  // namespace titan
