#include "titan/text/tokenizer.h"

#include <thread>

#include "src/text/tiktoken.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

using test::bytes_and;
using test::message_of;
using test::TemporaryFolder;

const std::filesystem::path kStories = checkout() / "configs/tokenizers/stories.model";
const std::filesystem::path kShared = checkout().parent_path() / "shared/data";

TEST(Tokenizer, TheStoryTokenizerHas2048IdsAndWritesItsWordsWithFew) {
  auto tokenizer = open_tokenizer(kStories);
  EXPECT_EQ(tokenizer->vocabulary_size(), 2048);
  EXPECT_EQ(tokenizer->bos_id(), 1792);
  EXPECT_EQ(tokenizer->eos_id(), 1793);
  EXPECT_EQ(tokenizer->description(), "TikTokenizer built: #words 2048, BOS ID 1792, EOS ID 1793");
  const std::string& story = test::stories()[5];
  EXPECT_LT(tokenizer->encode(story, false, false).size() * 3, story.size());
}

TEST(Tokenizer, DecodingGivesBackWhatWasEncoded) {
  auto tokenizer = open_tokenizer(kStories);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    using namespace std::string_literals;  // the alphabet holds a NUL
    std::string text = test::random_text(U"ab Z1\n\t'é漢🙂\u00A0٣ſ\0\u0301"s, 5000, seed);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false, false)), text);
  }
}

TEST(Tokenizer, BytesThatMakeNoCharacterAreDecodedAsPythonReplacesThem) {
  const std::vector<int32_t> ids{0xE6, 0xBC, 'a', 0xC3, 0xA9, 0xFF, 256, 0xF0, 0x9F};
  EXPECT_EQ(test::byte_tokenizer()->decode(ids), "\uFFFDa\u00E9\uFFFD<|begin_of_text|>\uFFFD");
}

TEST(Tokenizer, BeginAndEndAreAddedWhereAskedAndOnlyOnce) {
  auto tokenizer = test::byte_tokenizer();
  EXPECT_EQ(tokenizer->encode("a", true, true), (std::vector<int32_t>{256, 'a', 257}));
  EXPECT_EQ(tokenizer->encode("a", false, true), (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(tokenizer->encode("", true, false), (std::vector<int32_t>{256}));
}

TEST(Tokenizer, SpecialTokensHaveTheNamesAndPlacesOfLlama3) {
  TiktokenTokenizer tokenizer(bytes_and({}));
  auto name = [&](int32_t index) {
    int32_t id = 256 + index;
    return tokenizer.decode(std::span(&id, 1));
  };
  EXPECT_EQ(tokenizer.vocabulary_size(), 512);
  EXPECT_EQ(name(0), "<|begin_of_text|>");
  EXPECT_EQ(name(1), "<|end_of_text|>");
  EXPECT_EQ(name(2), "<|reserved_special_token_0|>");
  EXPECT_EQ(name(5), "<|reserved_special_token_3|>");
  EXPECT_EQ(name(6), "<|start_header_id|>");
  EXPECT_EQ(name(7), "<|end_header_id|>");
  EXPECT_EQ(name(8), "<|reserved_special_token_4|>");
  EXPECT_EQ(name(9), "<|eot_id|>");
  EXPECT_EQ(name(10), "<|reserved_special_token_5|>");
  EXPECT_EQ(name(255), "<|reserved_special_token_250|>");
  EXPECT_EQ(tokenizer.stop_ids(), (std::vector<int32_t>{257, 265}));
}

TEST(Tokenizer, TextThatLooksLikeASpecialTokenIsOrdinaryText) {
  auto tokenizer = open_tokenizer(kStories);
  for (int32_t id : tokenizer->encode("<|begin_of_text|> <|eot_id|>", false, false)) EXPECT_LT(id, tokenizer->bos_id());
}

TEST(Tokenizer, MalformedUtf8IsEncodedAsTheReplacementCharacter) {
  auto tokenizer = test::byte_tokenizer();
  EXPECT_EQ(tokenizer->encode("a\xFFz", false, false), tokenizer->encode("a\xEF\xBF\xBDz", false, false));
}

TEST(Tokenizer, IdsThatDoNotExistAreRefused) {
  auto tokenizer = test::byte_tokenizer();
  for (int32_t id : {-1, 512}) {
    EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { tokenizer->decode(std::span(&id, 1)); }),
                        "its ids are 0 to 511");
  }
}

TEST(Tokenizer, TheSameTextHasTheSameIdsAgainAndOnSeveralThreads) {
  auto tokenizer = open_tokenizer(kStories);
  auto ids_of = [&](size_t first) {
    std::vector<std::vector<int32_t>> all;
    for (size_t i = first; i < first + 40; ++i)
      all.push_back(tokenizer->encode(test::stories()[i] + "é\xFF", true, true));
    return all;
  };
  auto expected = std::pair(ids_of(0), ids_of(1000));  // two texts, so that the threads' caches differ
  std::vector<std::vector<int32_t>> first, second;
  std::thread one([&] { first = ids_of(0); });
  std::thread two([&] { second = ids_of(1000); });
  one.join();
  two.join();
  EXPECT_EQ(first, expected.first);
  EXPECT_EQ(second, expected.second);
}

TEST(Tokenizer, AFolderWithATiktokenModelIsOpened) {
  TemporaryFolder folder;
  write_tiktoken_file(folder / "tokenizer.model", bytes_and({}));
  EXPECT_EQ(open_tokenizer(folder.string())->name(), "tiktoken");
}

TEST(Tokenizer, AFileThatIsTooLongForAnyIsNotRead) {
  const TemporaryFolder folder;
  for (const auto& [name, begin] :
       {std::pair("tokenizer.json", "{"), {"a.model", "YQ== 0\n"}, {"b.model", "\n\x07\n\1a"}}) {
    const std::string path = folder.write(name, begin);
    std::filesystem::resize_file(path, uint64_t{1} << 40);  // without blocks on the disk
    EXPECT_PRED_FORMAT2(test::contains, test::message_of(ExitCode::bad_data, [&] { open_tokenizer(path); }),
                        "has more than 1.00 GiB");
  }
}

TEST(Tokenizer, TheTestModelBesideTheCheckoutIsReadAsSpecified) {
  if (!std::filesystem::exists(kShared / "test_tiktoken.model")) GTEST_SKIP() << kShared << " is not there";
  auto tokenizer = open_tokenizer(kShared / "test_tiktoken.model");
  EXPECT_EQ(tokenizer->description(), "TikTokenizer built: #words 2256, BOS ID 2000, EOS ID 2001");
  std::string text = read_file(kShared / "tinyshakespeare.txt");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false, false)), text);
}

}  // namespace
}  // namespace titan
