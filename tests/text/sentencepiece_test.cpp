#include <algorithm>
#include <map>

#include "support/files.h"
#include "support/random_sequence.h"
#include "tests/text/sentencepiece_files.h"
#include "titan/text/tokenizer.h"
#include "titan/text/utf8.h"

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

/// The plain twin of the unigram search: no trie, no words and no cache; the whole text is searched from its start, and
/// every piece is compared at every place. Piece i has id 3 + i.
Ids plain_unigram(const std::vector<std::pair<std::string, float>>& pieces, const std::string& text) {
  struct Best {
    float sum = 0;
    int32_t id = -1;
    size_t begin = 0;
  };
  float lowest = 0;
  for (const auto& [name, score] : pieces) lowest = std::min(lowest, score);
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    const float sum = score + best[begin].sum;
    if (best[end].id < 0 || sum > best[end].sum) best[end] = {sum, id, begin};
  };
  for (size_t begin = 0; begin < text.size(); begin += utf8_length(static_cast<unsigned char>(text[begin]))) {
    const size_t character = utf8_length(static_cast<unsigned char>(text[begin]));
    bool known = false;
    for (size_t length = 1; length <= text.size() - begin; ++length) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (text.substr(begin, length) != pieces[i].first) continue;
        offer(begin, begin + length, static_cast<int32_t>(3 + i), pieces[i].second);
        known = known || length == character;
      }
    }
    if (!known) offer(begin, begin + character, 0, lowest - 10);
  }
  Ids ids;
  for (size_t end = text.size(); end > 0; end = best[end].begin) {
    if (best[end].id != 0 || ids.empty() || ids.back() != 0) ids.push_back(best[end].id);
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

TEST(SentencePieceTokenizer, UnigramWithItsCacheOfWordsGivesTheIdsOfItsPlainTwin) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    PhiloxSequence random(seed);
    const auto word = [&](uint32_t longest, const char* letters) {
      std::string made(1 + random.below(longest), 'a');
      for (char& c : made) c = letters[random.below(3)];
      return made;
    };
    std::map<std::string, float> scores{{"▁", -3.0F}};
    // Scores of few values make ties; those of many make sums whose rounding differs from place to place.
    const auto score = [&] {
      return seed % 2 == 0 ? -0.5F * static_cast<float>(1 + random.below(8))
                           : -8 * static_cast<float>(random.uniform());
    };
    for (int i = 0; i < 15; ++i) scores[(random.below(3) == 0 ? "▁" : "") + word(4, "abc")] = score();
    const std::vector<std::pair<std::string, float>> pieces(scores.begin(), scores.end());
    std::string bytes;
    for (const auto& [name, value] : pieces) bytes += piece(name, value);
    auto tokenizer = opened(model_file(bytes, Kind::unigram));
    std::vector<std::string> words(8);
    for (std::string& each : words) each = word(9, "abd");  // d is unknown
    std::string text, marked;
    for (int i = 0; i < 60; ++i) {
      const std::string& each = words[random.below(8)];
      text += (i == 0 ? "" : " ") + each;
      marked += "▁" + each;
    }
    EXPECT_EQ(tokenizer->encode(text, false, false), plain_unigram(pieces, marked)) << seed;
  }
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
