#include "support/files.h"
#include "tests/text/sentencepiece_files.h"
#include "titan/text/tokenizer.h"

namespace titan {
namespace {

using Kind = SentencePieceModel::Kind;
using Type = SentencePiece::Type;
using test::byte_pieces;
using test::field;
using test::message_of;
using test::model_file;
using test::piece;
using test::TemporaryFolder;
using Ids = std::vector<int32_t>;

std::shared_ptr<const Tokenizer> opened(const std::string& bytes) {
  TemporaryFolder folder;
  return open_tokenizer(folder.write("tokenizer.model", bytes));
}

std::string refusal(const std::string& bytes) {
  return message_of(ExitCode::bad_data, [&] { opened(bytes); });
}

// Ids 3 to 9.
std::string bpe_pieces() {
  return piece("▁", -10) + piece("a", -11) + piece("b", -12) + piece("ab", -1) + piece("▁a", -2) + piece("bb", -0.5) +
         piece("▁ab", -3);
}

TEST(SentencePieceTokenizer, BpeMergesTheBestPieceFirst) {
  auto tokenizer = opened(model_file(bpe_pieces(), Kind::bpe));
  EXPECT_EQ(tokenizer->encode("ab", false, false), Ids{9});
  EXPECT_EQ(tokenizer->encode("abb", false, false), (Ids{7, 8}));  // "bb" before "ab"
  EXPECT_EQ(tokenizer->encode("aab a", false, false), (Ids{7, 6, 7}));
  EXPECT_EQ(tokenizer->description(), "SentencePieceTokenizer built: #words 10, BOS ID 1, EOS ID 2");
}

TEST(SentencePieceTokenizer, BeginAndEndAreAddedWhereAsked) {
  auto tokenizer = opened(model_file(bpe_pieces(), Kind::bpe));
  EXPECT_EQ(tokenizer->encode("ab", true, true), (Ids{1, 9, 2}));
  EXPECT_EQ(tokenizer->encode("", true, true), (Ids{1, 2}));
}

TEST(SentencePieceTokenizer, ARunOfUnknownCharactersIsOnePieceOrItsBytes) {
  EXPECT_EQ(opened(model_file(bpe_pieces(), Kind::bpe))->encode("axyé a", false, false), (Ids{7, 0, 7}));
  auto tokenizer = opened(model_file(bpe_pieces() + byte_pieces(), Kind::bpe, false, true));
  EXPECT_EQ(tokenizer->encode("aé", false, false), (Ids{7, 10 + 0xC3, 10 + 0xA9}));
  EXPECT_EQ(tokenizer->decode(Ids{7, 10 + 0xC3, 10 + 0xA9, 7, 10 + 0xC3, 7}), "aé a\uFFFD a");
}

TEST(SentencePieceTokenizer, UnigramTakesTheCutOfTheHighestSum) {
  const std::string pieces = piece("▁", -2) + piece("a", -3) + piece("b", -3) + piece("ab", -5) + piece("▁a", -4.5f);
  auto tokenizer = opened(model_file(pieces, Kind::unigram));
  EXPECT_EQ(tokenizer->name(), "SentencePiece (unigram)");
  EXPECT_EQ(tokenizer->encode("ab", false, false), (Ids{3, 6}));  // −7 against −7.5 and −8
  EXPECT_EQ(tokenizer->encode("a b", false, false), (Ids{7, 3, 5}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tokenizer->encode("ab ab", false, false), (Ids{3, 6, 3, 6}));  // cached words
}

TEST(SentencePieceTokenizer, AUserDefinedPieceIsAlwaysTaken) {
  for (Kind kind : {Kind::bpe, Kind::unigram}) {
    auto tokenizer = opened(model_file(bpe_pieces() + piece("bab", 0, Type::user_defined), kind));
    EXPECT_EQ(tokenizer->encode("abab", false, false), (Ids{7, 10}));
  }
}

TEST(SentencePieceTokenizer, SpacesAreKeptOrCollapsedAsTheModelAsks) {
  auto kept = opened(model_file(bpe_pieces(), Kind::bpe));
  EXPECT_EQ(kept->encode(" a  a ", false, false), (Ids{3, 7, 3, 7, 3}));
  EXPECT_EQ(kept->decode(kept->encode(" a  a ", false, false)), " a  a ");
  auto collapsed = opened(model_file(bpe_pieces(), Kind::bpe, true));
  EXPECT_EQ(collapsed->encode("  a  a ", false, false), (Ids{7, 7}));
  EXPECT_EQ(collapsed->decode(Ids{1, 7, 7, 2}), "a a");
  EXPECT_EQ(collapsed->encode("   ", false, false), Ids{});
}

TEST(SentencePieceTokenizer, LongTextIsTheSameAsItsWords) {
  auto tokenizer = opened(model_file(bpe_pieces(), Kind::bpe));
  std::string text = "abb";
  Ids expected{7, 8};
  for (int i = 0; i < 50'000; ++i) {  // more than one block of the normaliser
    text += " aab";
    expected.insert(expected.end(), {7, 6});
  }
  EXPECT_EQ(tokenizer->encode(text, false, false), expected);
}

TEST(SentencePieceTokenizer, WhatIsNotReadHereIsNamedWithTheWayOut) {
  for (const auto& [bytes, what] :
       {std::pair(model_file(bpe_pieces(), Kind::word), "a model of whole words"),
        std::pair(model_file(bpe_pieces(), Kind::character), "a model of characters"),
        std::pair(model_file(bpe_pieces(), Kind::bpe) + field(5, field(2, std::string("x"))),
                  "it has a denormaliser")}) {
    EXPECT_PRED_FORMAT2(test::contains, refusal(bytes), what);
    EXPECT_PRED_FORMAT2(test::contains, refusal(bytes), "Tokenise offline");
  }
}

TEST(SentencePieceTokenizer, DamageIsNamed) {
  const std::string good = model_file(bpe_pieces(), Kind::bpe);
  EXPECT_PRED_FORMAT2(test::contains, refusal(good.substr(0, good.size() - 3)),
                      "is not a protocol buffer from its byte");
  EXPECT_PRED_FORMAT2(test::contains, refusal(good + piece("ab", 0)), "comes a second time");
  EXPECT_PRED_FORMAT2(test::contains, refusal(good + piece("", 0)), "piece 10 is empty");
  EXPECT_PRED_FORMAT2(test::contains, refusal(good + piece("\xFF", 0)), "piece 10 is not UTF-8");
  EXPECT_PRED_FORMAT2(test::contains, refusal(good + piece("<u>", 0, Type::unknown)), "are both the unknown one");
  EXPECT_PRED_FORMAT2(test::contains, refusal(piece("a", 0)), "no piece is the unknown one");
  EXPECT_PRED_FORMAT2(test::contains, refusal(model_file(bpe_pieces(), Kind::bpe, false, true)),
                      "256 byte pieces are missing");
  EXPECT_PRED_FORMAT2(test::contains, refusal(good + field(3, field(2, std::string("abc")))),
                      "normalisation rules are cut short");
}

TEST(SentencePieceTokenizer, IdsThatDoNotExistAreRefused) {
  auto tokenizer = opened(model_file(bpe_pieces(), Kind::bpe));
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { tokenizer->decode(Ids{10}); }),
                      "its ids are 0 to 9");
}

}  // namespace
}  // namespace titan
