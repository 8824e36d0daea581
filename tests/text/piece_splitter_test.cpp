#include "src/text/piece_splitter.h"

#include "src/text/pre_tokenizer.h"
#include "support/texts.h"

namespace titan {
namespace {

using test::random_text;

using Rule = PieceSplitter::Rule;

std::vector<std::string> pieces(const std::string& text, bool expression_only = false, Rule rule = Rule::llama3) {
  PieceSplitter splitter(rule);
  PieceSplitter::Scratch scratch(splitter);
  std::vector<std::string> found;
  for (size_t begin = 0, end; begin < text.size(); begin = end) {
    end = expression_only ? splitter.expression_piece_end(text, begin, scratch)
                          : splitter.piece_end(text, begin, scratch);
    EXPECT_GT(end, begin);
    found.push_back(text.substr(begin, end - begin));
  }
  return found;
}

std::vector<std::string> segments(const std::string& text) {
  std::vector<std::string> found;
  SegmentCutter cutter(text);
  for (std::string_view segment; cutter.next(segment);) found.emplace_back(segment);
  return found;
}

TEST(PieceSplitter, CutsWordsWithTheSpaceBeforeThemAndNumbersInThrees) {
  EXPECT_EQ(pieces("It's 12345 o'clock,\n\n  don't!"),
            (std::vector<std::string>{"It", "'s", " ", "123", "45", " o", "'clock", ",\n\n", " ", " don", "'t", "!"}));
}

TEST(PieceSplitter, TheHandWrittenWayAgreesWithTheExpressionOnAsciiText) {
  std::u32string everything;
  for (char32_t c = 0; c < 128; ++c) everything += c;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const std::u32string& alphabet :
         {everything, std::u32string(U"a'sStTrReEvVlLmMdD "), std::u32string(U" \t\n\r!a1'")}) {
      std::string text = random_text(alphabet, 3000, seed);
      for (Rule rule : {Rule::llama3, Rule::qwen2, Rule::gpt2}) {
        ASSERT_EQ(pieces(text, false, rule), pieces(text, true, rule)) << "seed " << seed;
      }
    }
  }
}

TEST(PieceSplitter, TheHandWrittenWayLeavesToTheExpressionWhatACharacterBeyondAsciiDecides) {
  std::u32string alphabet = U"a1 '!\nsréſK漢٣\u00A0\u0085\u2028\u180E\u0301🙂";
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string text = random_text(alphabet, 2000, seed);
    for (Rule rule : {Rule::llama3, Rule::qwen2, Rule::gpt2}) {
      ASSERT_EQ(pieces(text, false, rule), pieces(text, true, rule)) << "seed " << seed;
    }
  }
}

TEST(PieceSplitter, MostOfPlainTextNeedsNoExpression) {
  std::string text = "Where is my kite? cried Tom.\n\nIt's 3 o'clock.";
  PieceSplitter splitter;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = splitter.ascii_piece_end(text, begin);
    ASSERT_GT(end, begin);
    begin = end;
  }
}

TEST(PieceSplitter, TheRulesDifferInNumbersContractionsAndLineFeeds) {
  EXPECT_EQ(pieces("I'M 1234\n\n!", false, Rule::qwen2),
            (std::vector<std::string>{"I", "'M", " ", "1", "2", "3", "4", "\n\n", "!"}));
  EXPECT_EQ(pieces("I'M 1234\n\n!", false, Rule::gpt2),
            (std::vector<std::string>{"I", "'", "M", " 1234", "\n", "\n", "!"}));
}

TEST(PieceSplitter, KnowsItsRulesByTheExpressionsThatFilesHold) {
  for (Rule rule : {Rule::llama3, Rule::qwen2, Rule::gpt2}) {
    EXPECT_EQ(PieceSplitter::rule_of(PieceSplitter::expression_of(rule)), rule);
  }
  EXPECT_EQ(PieceSplitter::rule_of("\\p{L}+"), std::nullopt);
}

TEST(PieceSplitter, TheMongolianVowelSeparatorIsNoWhitespace) {
  // PCRE2's own \s would take it for a space and leave the second one to the next piece.
  EXPECT_EQ(pieces("\u180E\u180E"), (std::vector<std::string>{"\u180E\u180E"}));
}

TEST(SegmentCutter, TextWithoutLongRunsIsOneSegment) {
  std::string text;
  while (text.size() < 300'000) text += "words and spaces ";
  EXPECT_EQ(segments(text), std::vector<std::string>{text});
  EXPECT_TRUE(segments("").empty());
}

TEST(SegmentCutter, ARunIsCutAfter25000CharactersWhateverTheirBytes) {
  for (const std::string letter : {"x", "é", "漢", "🙂", " ", "\u3000"}) {
    std::string run;
    for (int i = 0; i < 60'000; ++i) run += letter;
    auto found = segments(run);
    ASSERT_EQ(found.size(), 3u) << letter;
    EXPECT_EQ(found[0].size(), 25'000 * letter.size());
    EXPECT_EQ(found[1].size(), 25'000 * letter.size());
    EXPECT_EQ(found[0] + found[1] + found[2], run);
  }
}

TEST(SegmentCutter, ARunOfExactlyTheLimitStaysWhole) {
  std::string text = "a " + std::string(25'000, 'x') + " b";
  EXPECT_EQ(segments(text).size(), 1u);
  text = "a " + std::string(25'001, 'x') + " b";
  auto found = segments(text);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], "a " + std::string(25'000, 'x'));
  EXPECT_EQ(found[1], "x b");
}

TEST(SegmentCutter, BlocksEndAfter400000CharactersAndRunsBeginAnewThere) {
  std::string text;
  while (text.size() < 399'990) text += "é x ";  // five bytes, four characters: blocks count characters
  std::string body;
  for (int i = 0; i < 100'000; ++i) body += "é x ";
  auto found = segments(body + body);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], body);

  std::string words;
  while (words.size() < 390'000) words += "word ";
  auto cut = segments(words + std::string(10'000, 'y') + std::string(25'000, 'y') + " end");
  ASSERT_EQ(cut.size(), 2u);  // the run is 35,000 long, but each block sees at most 25,000 of it
  EXPECT_EQ(cut[0], words + std::string(10'000, 'y'));
}

}  // namespace
}  // namespace titan
