#include <fmt/format.h>
#include <sys/stat.h>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "src/text/added_tokens.h"
#include "src/text/tiktoken.h"
#include "support/files.h"
#include "support/texts.h"
#include "tests/text/sentencepiece_files.h"
#include "titan/base/filesystem.h"
#include "titan/text/tokenizer.h"

namespace titan {
namespace {

using nlohmann::json;
using test::bytes_and;
using test::message_of;
using test::TemporaryFolder;
using Ids = std::vector<int32_t>;

json byte_vocabulary() {
  json vocabulary = json::object();
  for (const std::string& token : bytes_and({"he", "the"})) vocabulary[to_byte_alphabet(token)] = vocabulary.size();
  return vocabulary;
}

/// A vocab.json with merges.txt of 258 tokens, where a byte's id is the byte, and "he" and "the" follow.
struct TokenizerFolder : TemporaryFolder {
  TokenizerFolder() {
    write("vocab.json", byte_vocabulary().dump());
    write("merges.txt", "h e\nt he\n");
  }
  /// Adds a tokenizer_config.json of the class Qwen2Tokenizer.
  void configure(const char* fields) const {
    json config = {{"tokenizer_class", "Qwen2Tokenizer"}, {"unk_token", nullptr}, {"pad_token", nullptr}};
    config.update(json::parse(fields));
    write("tokenizer_config.json", config.dump());
  }
  std::shared_ptr<const Tokenizer> open() const { return open_tokenizer(string()); }
  Ids encode(const std::string& text) const { return open()->encode(text, false, false); }
  std::string refusal() const {
    return message_of(ExitCode::bad_data, [&] { open(); });
  }
};

TEST(TokenizerFolder, AddedTokensOfTheConfigAreFoundWithTheirFlags) {
  TokenizerFolder folder;
  folder.configure(R"({"eos_token": "<|end|>", "added_tokens_decoder": {
    "258": {"content": "<|start|>", "special": true}, "259": {"content": "<|end|>", "special": true},
    "260": {"content": "<tool>", "lstrip": true, "rstrip": true}}})");
  EXPECT_EQ(folder.encode("<|start|>the<|end|>"), (Ids{258, 257, 259}));
  EXPECT_EQ(folder.encode("a <tool> b"), (Ids{'a', 260, 'b'}));
  EXPECT_EQ(folder.open()->eos_id(), 259);
  EXPECT_EQ(folder.open()->vocabulary_size(), 261);
  EXPECT_TRUE(folder.open()->notices().empty());
}

TEST(TokenizerFolder, AnAddedTokenGetsTheNextFreeIdWhateverTheConfigSaysAndThatIsReported) {
  TokenizerFolder folder;
  folder.configure(R"({"eos_token": null, "added_tokens_decoder": {"300": {"content": "<x>"}}})");
  EXPECT_EQ(folder.encode("a<x>"), (Ids{'a', 258}));
  ASSERT_EQ(folder.open()->notices().size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, folder.open()->notices()[0], "the token \"<x>\" the id 300; it has the id 258");
  folder.configure(
      R"({"eos_token": null, "added_tokens_decoder": {"300": {"content": "<x>"}, "301": {"content": "<y>"}}})");
  ASSERT_EQ(folder.open()->notices().size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, folder.open()->notices()[0], "in transformers (and 1 others likewise)");
}

// Expected ids are those of transformers 5.24 for the same files.
TEST(TokenizerFolder, ANamedTokenIsSpecialAndSoMatchedBeforeNormalisation) {
  TokenizerFolder folder;
  folder.configure(
      R"({"eos_token": "e", "added_tokens_decoder": {"101": {"content": "e"}, "258": {"content": "the"}}})");
  EXPECT_EQ(folder.encode("the"), (Ids{'t', 'h', 'e'}));
  folder.configure(
      R"({"eos_token": null, "added_tokens_decoder": {"101": {"content": "e"}, "258": {"content": "the"}}})");
  EXPECT_EQ(folder.encode("the"), Ids{257});
}

TEST(TokenizerFolder, ATokenOfSpacesIsFoundAgainInTheSpacesThatItConsumes) {
  TokenizerFolder folder;
  folder.configure(R"({"eos_token": null, "added_tokens_decoder": {"258": {"content": "  ", "rstrip": true}}})");
  EXPECT_EQ(folder.encode("a     b"), (Ids{'a', 258, 258, 'b'}));
  folder.configure(
      R"({"eos_token": null, "added_tokens_decoder": {"258": {"content": "  ", "lstrip": true, "rstrip": true}}})");
  EXPECT_EQ(folder.encode("a     b"), (Ids{'a', 258, 'b'}));
}

TEST(TokenizerFolder, TheFormerFilesCountWhereTheConfigListsNoAddedTokens) {
  TokenizerFolder folder;
  folder.write("added_tokens.json", R"({"<|end|>": 258, "<a>": 259})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<|end|>"})");
  folder.configure(R"({"eos_token": "<a>"})");
  EXPECT_EQ(folder.encode("<a><|end|>"), (Ids{259, 258}));
  EXPECT_EQ(folder.open()->eos_id(), 258);
  ASSERT_EQ(folder.open()->notices().size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, folder.open()->notices()[0], "its eos_token \"<|end|>\" is used, not \"<a>\"");
  folder.configure(R"({"eos_token": "<a>", "added_tokens_decoder": {"258": {"content": "<a>"}}})");
  EXPECT_EQ(folder.open()->eos_id(), 258);
  EXPECT_EQ(folder.encode("<a>"), Ids{258});
  EXPECT_EQ(folder.open()->notices().size(), 2u);
}

TEST(TokenizerFolder, BeginAndEndAreAddedByDefaultWhereTheConfigSaysSo) {
  TokenizerFolder folder;
  const std::string tokens = R"("bos_token": "a", "eos_token": "b", "added_tokens_decoder": {})";
  folder.configure(("{" + tokens + "}").c_str());
  EXPECT_EQ(folder.open()->encode_by_default("the"), Ids{257});
  EXPECT_FALSE(folder.open()->adds_bos());
  folder.configure(("{\"add_bos_token\": true, \"add_eos_token\": true," + tokens + "}").c_str());
  EXPECT_EQ(folder.open()->encode_by_default("the"), (Ids{'a', 257, 'b'}));
  EXPECT_TRUE(folder.open()->adds_bos());
  EXPECT_EQ(folder.encode("the"), Ids{257});
}

TEST(TokenizerFolder, SpecialTokensAreTextWhereTheConfigSplitsThem) {
  TokenizerFolder folder;
  folder.configure(R"({"eos_token": "<x>", "split_special_tokens": true, "added_tokens_decoder": {
    "258": {"content": "<x>", "special": true}, "259": {"content": "<y>"}}})");
  EXPECT_EQ(folder.encode("<x><y>"), (Ids{'<', 'x', '>', 259}));
}

TEST(TokenizerFolder, AClassThatIsNotReadIsNamed) {
  TokenizerFolder folder;
  folder.configure(R"({"tokenizer_class": "RobertaTokenizer", "eos_token": null})");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(),
                      "the class RobertaTokenizer is not read here from a vocab.json");
}

/// <unk>, <s>, </s>, "▁", "a", "b", "ab" and "▁ab", in this order.
std::string small_sentencepiece(bool extra_spaces_go = false) {
  return test::model_file(test::piece("▁", -1) + test::piece("a", -2) + test::piece("b", -3) + test::piece("ab", -4) +
                              test::piece("▁ab", -5),
                          SentencePieceModel::Kind::bpe, extra_spaces_go);
}

TEST(TokenizerFolder, ASentencePieceModelIsReadAsItsClassDoes) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", small_sentencepiece());
  EXPECT_EQ(open_tokenizer(folder.string())->encode("<x>ab", false, false), (Ids{3, 0, 6}));
  folder.write("added_tokens.json", R"({"<x>": 8})");
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "LlamaTokenizer", "eos_token": "<x>", "add_bos_token": true})");
  const auto tokenizer = open_tokenizer(folder.string());
  EXPECT_EQ(tokenizer->encode("ab<x>ab", false, false), (Ids{7, 8, 6}));
  EXPECT_EQ(tokenizer->encode_by_default("ab"), (Ids{1, 7}));
  EXPECT_EQ(tokenizer->eos_id(), 8);
  // Another class keeps SentencePiece's way: a space before the text after an added token.
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "TokenizersBackend"})");
  EXPECT_EQ(open_tokenizer(folder.string())->encode("ab<x>ab", false, false), (Ids{7, 8, 7}));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }),
                      "the class T5Tokenizer is not read here from a SentencePiece model");
}

// Expected ids are those of transformers 5.24 for the same files.
TEST(TokenizerFolder, TheClassOfTheModelsConfigPutsAMarkBeforeATextAlsoWithoutATokenizersConfig) {
  const char* config = R"({"model_type": "llama", "tokenizer_class": "LlamaTokenizerFast"})";
  TemporaryFolder folder;
  folder.write("config.json", config);
  folder.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
    {"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
    "model": {"type": "BPE", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "ab": 6, "▁ab": 7},
    "merges": ["a b", "▁ ab"]}})");
  EXPECT_EQ(open_tokenizer(folder.string())->encode("ab<s>ab ab", false, false), (Ids{7, 1, 6, 7}));
  folder.write("special_tokens_map.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  EXPECT_EQ(open_tokenizer(folder.string())->encode("ab<s>ab ab", false, false), (Ids{7, 1, 6, 7}));
  TemporaryFolder model;
  model.write("config.json", config);
  model.write("tokenizer.model", small_sentencepiece());
  model.write("added_tokens.json", R"({"<x>": 8})");
  EXPECT_EQ(open_tokenizer(model.string())->encode("ab<x>ab ab", false, false), (Ids{7, 8, 6, 7}));
}

// Expected ids are those of transformers 5.24 for the same files.
TEST(TokenizerFolder, LegacyThatIsNullIsFalse) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", small_sentencepiece());
  const auto encode = [&](const char* config) {
    folder.write("tokenizer_config.json", config);
    return open_tokenizer(folder.string())->encode("ab<s>ab", false, false);
  };
  EXPECT_EQ(encode(R"({"tokenizer_class": "PreTrainedTokenizerFast", "legacy": null})"), (Ids{7, 1, 6}));
  EXPECT_EQ(encode(R"({"tokenizer_class": "PreTrainedTokenizerFast", "legacy": true})"), (Ids{7, 1, 7}));
  EXPECT_EQ(encode(R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), (Ids{7, 1, 7}));
  EXPECT_EQ(encode(R"({"tokenizer_class": "LlamaTokenizer", "legacy": null})"), (Ids{7, 1, 6}));
}

// Expected ids are those of transformers 5.24 for the same files.
TEST(TokenizerFolder, ATextWhoseFirstSpacesAreRemovedGetsAMarkOnlyWithLegacy) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", small_sentencepiece(/*extra_spaces_go=*/true));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "legacy": false})");
  const auto encode = [&](const char* text) { return open_tokenizer(folder.string())->encode(text, false, false); };
  EXPECT_EQ(encode("ab  ab"), (Ids{7, 7}));
  EXPECT_EQ(encode("  ab  ab "), (Ids{6, 7}));
  EXPECT_EQ(encode(" ab<s> ab"), (Ids{6, 1, 6}));
  EXPECT_EQ(encode("  <s>  ab"), (Ids{1, 6}));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_EQ(encode("  ab  ab "), (Ids{7, 7}));
  EXPECT_EQ(encode(" ab<s> ab"), (Ids{7, 1, 7}));
}

// Expected ids are those of transformers 5.24 for the same files.
TEST(TokenizerFolder, ANullListOfSpecialTokensIsAnEmptyOneAndRulesOutTheModelsOwn) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", small_sentencepiece());
  const auto encode = [&](const char* fields) {
    json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", nullptr}};
    config.update(json::parse(fields));
    folder.write("tokenizer_config.json", config.dump());
    return open_tokenizer(folder.string())->encode("ab</s>ab<s>ab", false, false);
  };
  const Ids with_pieces = {7, 2, 7, 1, 7}, without = {7, 0, 6, 1, 7};
  EXPECT_EQ(encode("{}"), with_pieces);
  EXPECT_EQ(encode(R"({"additional_special_tokens": null})"), without);
  EXPECT_EQ(encode(R"({"extra_special_tokens": null})"), without);
  EXPECT_EQ(encode(R"({"extra_special_tokens": []})"), without);
  EXPECT_EQ(encode(R"({"extra_special_tokens": {}, "additional_special_tokens": null})"), without);
  EXPECT_EQ(encode(R"({"extra_special_tokens": {"x_token": "<s>"}})"), with_pieces);
  folder.write("special_tokens_map.json", R"({"extra_special_tokens": null})");
  EXPECT_EQ(encode("{}"), without);
  EXPECT_EQ(encode(R"({"added_tokens_decoder": {}})"), with_pieces);
}

TEST(TokenizerFolder, ASentencePieceModelWithoutAClassFollowsItsOwnSettings) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", small_sentencepiece());
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"8": {"content": "<x>"}}})");
  EXPECT_EQ(open_tokenizer(folder.string())->encode("ab<x>ab", false, false), (Ids{7, 8, 7}));
  EXPECT_EQ(open_tokenizer(folder.string())->bos_id(), 1);
}

TEST(TokenizerFolder, ATiktokenFileHasTheSpecialTokensOfItsConfig) {
  TemporaryFolder folder;
  write_tiktoken_file(folder / "tokenizer.model", bytes_and({"he", "the"}));
  EXPECT_EQ(open_tokenizer(folder.string())->bos_id(), 258);
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>",
    "added_tokens_decoder": {"258": {"content": "<s>"}, "260": {"content": "<e>"}}})");
  const auto tokenizer = open_tokenizer(folder.string());
  EXPECT_EQ(tokenizer->encode("the<s><e>", false, false), (Ids{257, 258, 260}));
  EXPECT_EQ(tokenizer->eos_id(), 260);
  EXPECT_EQ(tokenizer->token_name(259), "<|reserved_token_259|>");
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["my.MyTokenizer", null]}})");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }),
                      "names Python code of its own (auto_map, class MyTokenizer)");
}

TEST(TokenizerFolder, ATiktokenFileOfAnotherModelIsNotTakenForLlama3s) {
  TemporaryFolder folder;
  const auto write = [&](const std::vector<std::string>& tokens) {
    write_tiktoken_file(folder / "tokenizer.model", tokens);
    std::string text = read_file(folder / "tokenizer.model");
    ASSERT_TRUE(text.ends_with("\n\n"));  // the mark of `tokenizer train`
    text.pop_back();
    folder.write("tokenizer.model", text);
  };
  write(bytes_and({"he", "the"}));
  ASSERT_EQ(open_tokenizer(folder.string())->notices().size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, open_tokenizer(folder.string())->notices()[0],
                      "its 258 tokens are not Llama 3's");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  ASSERT_EQ(open_tokenizer(folder.string())->notices().size(), 1u);
  const auto refusal = [&] { return message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }); };
  write(bytes_and({"20", "2026"}));
  EXPECT_PRED_FORMAT2(test::contains, refusal(), "Llama 3's expression would split the token \"2026\"");
  std::vector<std::string> many;
  for (int i = 0; i < 50'000; ++i)
    many.push_back("x" + std::string(1, static_cast<char>('a' + i % 26)) + "y" + std::to_string(i));
  write(bytes_and(std::move(many)));
  EXPECT_PRED_FORMAT2(test::contains, refusal(), "the 50,256 tokens are r50k_base");
}

TEST(TokenizerFolder, APipeIsNoTokenizer) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "tokenizer.json").c_str(), 0600), 0);
  for (const std::string& path : {folder.string(), (folder / "tokenizer.json").string()}) {
    EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(path); }),
                        "this is not a file but a folder, a pipe or a device");
  }
}

TEST(AddedTokens, TheLongestOneIsFoundWhateverOthersItBeginsWith) {
  std::mt19937 random(5);
  const auto word = [&](size_t longest) {
    std::string made(1 + random() % longest, 'a');
    for (char& c : made) c = "ab\xE9"[random() % 3];
    return made;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<AddedToken> tokens(1 + random() % 20);
    for (AddedToken& token : tokens) token.content = word(6);
    const AddedTokenFinder finder(tokens);
    const std::string text = word(60);
    for (size_t at = 0; at < text.size(); ++at) {
      std::string_view longest;
      for (const AddedToken& token : tokens) {
        const bool matches = std::string_view(text).substr(at).starts_with(token.content);
        if (matches && token.content.size() > longest.size()) longest = token.content;
      }
      const AddedToken* found = finder.longest_at(text, at);
      ASSERT_EQ(found ? found->content : "", longest) << text << " at " << at;
    }
  }
}

TEST(AddedTokens, WhitespaceThatManyTokensConsumeIsReadOnce) {
  AddedToken line;
  line.content = "\n";
  line.lstrip = line.rstrip = true;
  const AddedTokenFinder finder({line});
  std::vector<AddedTokenFinder::Part> parts;
  const auto began = std::chrono::steady_clock::now();
  finder.split(std::string(1'000'000, '\n'), parts);
  EXPECT_EQ(parts.size(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));  // an hour if each reads all of it
}

/// Each of these took minutes when every token was compared with every other one.
TEST(TokenizerFolder, ThreeHundredThousandAddedTokensAreReadAndFoundInSeconds) {
  constexpr int kTokens = 300'000;
  const auto began = std::chrono::steady_clock::now();
  TokenizerFolder folder;
  json extra = json::array(), listed = json::object(), config = json::object();
  std::string text;
  for (int i = 0; i < kTokens; ++i) {
    const std::string name = fmt::format("<|{}|>", i);
    extra.push_back(name);
    listed[name] = 258 + i;
    config[fmt::format("n{}_token", i)] = name;
    text += "<|" + std::to_string(i);  // begins like the tokens
  }
  config["tokenizer_class"] = "GPT2Tokenizer";
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) config[key] = nullptr;
  config["extra_special_tokens"] = std::move(extra);
  folder.write("tokenizer_config.json", config.dump());
  folder.write("added_tokens.json", listed.dump());
  const std::shared_ptr<const Tokenizer> tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocabulary_size(), 258 + kTokens);
  EXPECT_EQ(tokenizer->encode(text + "<|299999|>", false, false).back(), 258 + 299'999);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

}  // namespace
}  // namespace titan
