#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/text/tiktoken.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/text/tokenizer.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::bytes_and;
using test::message_of;
using test::TemporaryFolder;
using Ids = std::vector<int32_t>;

/// A byte-level tokenizer.json of 259 tokens: bytes by their values, "he", "the" and "12". Digits are split from text.
struct JsonFolder : TemporaryFolder {
  JsonFolder() { write_tokenizer(); }
  void write_tokenizer(const json& more = {}, const json& vocabulary = byte_vocabulary_and({"12"})) const {
    const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
    split["pattern"]["Regex"] = "\\d+|[^\\d]+";
    json file = {{"version", "1.0"}, {"added_tokens", json::array()}, {"decoder", {{"type", "ByteLevel"}}}};
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
    file["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "t he", "1 2"}}};
    if (!more.is_null()) file.update(more);
    write("tokenizer.json", file.dump());
  }
  /// A tokenizer_config.json of the class PreTrainedTokenizerFast. The text keeps the order of its keys.
  void configure(const std::string& fields) const {
    write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast")" + fields + "}");
  }
  std::shared_ptr<const Tokenizer> open() const { return open_tokenizer(string()); }
  Ids encode(const std::string& text) const { return open()->encode(text, false, false); }
  std::string named(const std::string& key) const {
    for (const auto& [name, token] : open()->named_tokens()) {
      if (name == key) return token;
    }
    return "none";
  }
  std::string refusal() const {
    return message_of(ExitCode::bad_data, [&] { open(); });
  }
  std::string notices() const {
    std::string all;
    for (const std::string& notice : open()->notices()) all += notice + "\n";
    return all;
  }

  static json byte_vocabulary_and(const std::vector<std::string>& more) {
    json vocabulary = json::object();
    for (const std::string& token : bytes_and({"he", "the"})) vocabulary[to_byte_alphabet(token)] = vocabulary.size();
    for (const std::string& token : more) vocabulary[token] = vocabulary.size();
    return vocabulary;
  }
};

// Expected ids here and below are those of transformers 5.24 for the same files.
TEST(TokenizerSettings, TheClassOfTheModelCountsForModelsThatReadImages) {
  TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  folder.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
    {"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "model": {"type": "BPE", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "H": 4, "i": 5}, "merges": []}})");
  const auto encode = [&](const char* type) {
    folder.write("config.json", fmt::format(R"({{"model_type": "{}"}})", type));
    return open_tokenizer(folder.string())->encode("Hi</s>Hi", false, false);
  };
  EXPECT_EQ(encode("llama"), (Ids{3, 4, 5, 2, 4, 5}));
  for (const char* type : {"llava", "llava_next", "pixtral", "mistral3"}) {
    EXPECT_EQ(encode(type), (Ids{3, 4, 5, 2, 3, 4, 5})) << type;
  }
}

TEST(TokenizerSettings, AModelThatTransformersDoesNotKnowIsReported) {
  JsonFolder folder;
  folder.configure("");
  folder.write("config.json", R"({"model_type": "llama"})");
  EXPECT_EQ(folder.notices(), "");
  folder.write("config.json", R"({"model_type": "nobody_knows"})");
  EXPECT_PRED_FORMAT2(test::contains, folder.notices(), "the model_type nobody_knows is not known here");
}

TEST(TokenizerSettings, TheExpressionOfMistralsEarlyFilesIsReplacedWhereTheConfigSaysSoAndReportedWhereItDoesNot) {
  std::vector<std::string> many = {"12"};
  for (int i = 0; i < 100'000; ++i) many.push_back(fmt::format("zq{}", i));
  const json large = JsonFolder::byte_vocabulary_and(many);
  JsonFolder folder;
  const Ids whole = {258, 258}, cut = {'1', '2', '1', '2'};
  const auto check = [&](const char* fields, const char* model, const Ids& ids, bool reported) {
    folder.configure(fields);
    folder.write("config.json", model);
    EXPECT_EQ(folder.encode("1212"), ids) << fields << model;
    EXPECT_EQ(folder.notices().find("which may split text wrongly") != std::string::npos, reported) << fields << model;
  };
  const char* fix = R"(, "fix_mistral_regex": true)";
  const char* mistral = R"({"model_type": "mistral", "transformers_version": "4.50.0"})";
  check(fix, mistral, whole, false);  // a small vocabulary
  const uint64_t small = folder.open()->fingerprint();
  folder.write_tokenizer({}, large);
  check(fix, mistral, cut, false);
  const uint64_t fixed = folder.open()->fingerprint();
  check(fix, "{}", cut, false);
  check("", mistral, whole, true);
  EXPECT_NE(folder.open()->fingerprint(), fixed);
  EXPECT_NE(folder.open()->fingerprint(), small);
  check(R"(, "fix_mistral_regex": false)", mistral, whole, false);
  check(fix, R"({"model_type": "mistral", "transformers_version": "5.0.0"})", whole, false);
  check(fix, R"({"model_type": "llama", "transformers_version": "4.50.0"})", whole, false);
  fs::remove(folder / "config.json");
  EXPECT_EQ(folder.encode("1212"), whole);
}

TEST(TokenizerSettings, AFileForALaterVersionOfTransformersIsNotPassedOverInSilence) {
  JsonFolder folder;
  folder.configure(R"(, "fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"])");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "by which transformers reads tokenizer.4.0.0.json instead");
  fs::rename(folder / "tokenizer.json", folder / "tokenizer.4.0.0.json");
  EXPECT_EQ(open_tokenizer(folder / "tokenizer.4.0.0.json")->encode("the", false, false), Ids{257});
  folder.write_tokenizer();
  folder.configure(R"(, "fast_tokenizer_files": ["tokenizer.json", "tokenizer.6.0.0.json"])");
  EXPECT_EQ(folder.encode("the"), Ids{257});
}

TEST(TokenizerSettings, ATokenThatPadsIsThePadTokenUnlessTheConfigNamesAnother) {
  JsonFolder folder;
  folder.write_tokenizer({{"padding",
                           {{"strategy", "BatchLongest"},
                            {"direction", "Right"},
                            {"pad_to_multiple_of", nullptr},
                            {"pad_id", 0},
                            {"pad_type_id", 0},
                            {"pad_token", "[PAD]"}}}});
  folder.configure("");
  EXPECT_EQ(folder.named("pad_token"), "[PAD]");
  EXPECT_EQ(folder.encode("the[PAD]"), (Ids{257, 259}));
  folder.configure(R"(, "pad_token": null)");
  EXPECT_EQ(folder.named("pad_token"), "none");
  folder.configure(R"(, "pad_token": "the")");
  EXPECT_EQ(folder.named("pad_token"), "the");
  folder.configure(
      R"(, "tokenizer_padding": {"pad_token": "<p>", "pad_id": 0, "direction": "right", "pad_type_id": 0,
         "length": null, "pad_to_multiple_of": null})");
  EXPECT_EQ(folder.named("pad_token"), "<p>");
  EXPECT_EQ(folder.encode("the<p>"), (Ids{257, 259}));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "bos_token": null})");
  EXPECT_EQ(folder.named("pad_token"), "none");  // its class has none
}

TEST(TokenizerSettings, AModelsOwnTokensAreAddedAndNamedInTheOrderOfTheFile) {
  JsonFolder folder;
  folder.configure(R"(, "model_specific_special_tokens": {"image_token": "<img>", "audio_token": "<au>"})");
  EXPECT_EQ(folder.named("image_token"), "<img>");
  EXPECT_EQ(folder.encode("<img><au>"), (Ids{259, 260}));
  folder.configure(R"(, "z_token": "<z>", "a_token": "<a>")");
  EXPECT_EQ(folder.encode("<z><a>"), (Ids{259, 260}));
  // Fields count more than the list.
  folder.configure(R"(, "z_token": "<z>", "model_specific_special_tokens": {"image_token": "<img>"})");
  EXPECT_EQ(folder.named("image_token"), "none");
  EXPECT_EQ(folder.encode("<z>"), Ids{259});
  // And special_tokens_map.json less than a field.
  folder.configure(R"(, "z_token": "<z>")");
  folder.write("special_tokens_map.json", R"({"z_token": "<y>"})");
  EXPECT_EQ(folder.named("z_token"), "<z>");
  EXPECT_PRED_FORMAT2(test::contains, folder.notices(), "its z_token \"<y>\" is not used, but \"<z>\"");
  folder.configure(R"(, "model_specific_special_tokens": ["<img>"])");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "model_specific_special_tokens is not an object");
}

TEST(TokenizerSettings, ASpecialTokenOfAWrongTypeIsRefused) {
  JsonFolder folder;
  for (const char* value : {"5", "false", R"(["<s>"])"}) {
    folder.configure(fmt::format(R"(, "bos_token": {})", value));
    EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "tokenizer_config.json: bos_token is neither a string, nor");
  }
  folder.configure(R"(, "added_tokens_decoder": null)");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "added_tokens_decoder is not an object");
  folder.configure(R"(, "bos_token": "the")");
  EXPECT_EQ(folder.open()->bos_id(), 257);
  folder.write("special_tokens_map.json", R"({"bos_token": null})");
  EXPECT_EQ(folder.open()->bos_id(), Tokenizer::kNoId);
  EXPECT_PRED_FORMAT2(test::contains, folder.notices(), "its bos_token null is used, not \"the\"");
  folder.write("special_tokens_map.json", R"({"bos_token": 5})");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "special_tokens_map.json: bos_token is neither a string, nor");
}

TEST(TokenizerSettings, CodeBesideATokenizersFileIsDoneWithoutWhereTransformersHasAClass) {
  JsonFolder folder;
  const std::string code = R"(, "auto_map": {"AutoTokenizer": ["my.MyTokenizer", null]})";
  folder.configure(code);
  EXPECT_EQ(folder.encode("the"), Ids{257});
  EXPECT_PRED_FORMAT2(test::contains, folder.notices(), "the Python code that it names (auto_map) is not used");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "MyTokenizer")" + code + "}");
  EXPECT_PRED_FORMAT2(test::contains, folder.refusal(), "names Python code of its own (auto_map, class MyTokenizer)");
  folder.write("config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(folder.encode("the"), Ids{257});
}

}  // namespace
}  // namespace titan
