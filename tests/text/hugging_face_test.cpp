#include <nlohmann/json.hpp>

#include "src/text/hugging_face_tokenizer.h"
#include "src/text/tiktoken.h"
#include "support/files.h"

namespace titan {
namespace {

using nlohmann::json;
using test::message_of;
using test::TemporaryFolder;
using Ids = std::vector<int32_t>;

/// Byte-level BPE over 256 bytes (id = byte), " t" (256), "he" (257), " the" (258) and "<|end|>" (259).
json small_tokenizer() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary[to_byte_alphabet({&c, 1})] = byte;
  }
  for (const char* token : {" t", "he", " the"}) vocabulary[to_byte_alphabet(token)] = vocabulary.size();
  json file = json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
    "added_tokens": [{"id": 259, "content": "<|end|>", "special": true, "normalized": false}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": ["Ġ t", "h e", ["Ġt", "he"]]}
  })");
  file["model"]["vocab"] = vocabulary;
  return file;
}

struct Folder : TemporaryFolder {
  explicit Folder(const json& tokenizer = small_tokenizer(), const json& config = json()) {
    write("tokenizer.json", tokenizer.dump());
    if (!config.is_null()) write("tokenizer_config.json", config.dump());
  }
  std::shared_ptr<const Tokenizer> open() const { return open_tokenizer(string()); }
  std::string refusal() const {
    return message_of(ExitCode::bad_data, [&] { open(); });
  }
};

json with(const std::string& pointer, const json& value) {
  json file = small_tokenizer();
  file[json::json_pointer(pointer)] = value;
  return file;
}

TEST(HuggingFaceTokenizer, MergesInTheOrderOfTheFileAndDecodesBack) {
  auto tokenizer = Folder().open();
  EXPECT_EQ(tokenizer->encode("the then", false, false), (Ids{'t', 257, 258, 'n'}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the then é\xFF", false, false)), "the then é\uFFFD");
  EXPECT_EQ(tokenizer->vocabulary_size(), 260);
  EXPECT_EQ(tokenizer->description(), "HuggingFaceTokenizer built: #words 260, BOS ID none, EOS ID none");
}

TEST(HuggingFaceTokenizer, AddedTokensAreFoundInTheText) {
  auto tokenizer = Folder().open();
  EXPECT_EQ(tokenizer->encode("a<|end|>b", false, false), (Ids{'a', 259, 'b'}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 259, 'b'}), "a<|end|>b");
}

TEST(HuggingFaceTokenizer, AddedTokensObserveWordsAndTakeSpacesAlong) {
  auto encode = [](const char* flags, const std::string& text) {
    json file = small_tokenizer();
    file["added_tokens"][0].update(json::parse(flags));
    return Folder(file).open()->encode(text, false, false);
  };
  EXPECT_EQ(encode(R"({"content": "end", "single_word": true})", "bend end."),
            (Ids{'b', 'e', 'n', 'd', ' ', 259, '.'}));
  EXPECT_EQ(encode(R"({"lstrip": true})", "a \t<|end|> b"), (Ids{'a', 259, ' ', 'b'}));
  EXPECT_EQ(encode(R"({"rstrip": true})", "a <|end|> \u3000b"), (Ids{'a', ' ', 259, 'b'}));
}

// Expected ids are those of the package `tokenizers` 0.23.3.
TEST(HuggingFaceTokenizer, AnAddedTokenAfterAGapGetsTheNextFreeIdAndThatIsReported) {
  json file = small_tokenizer();
  file["added_tokens"] = {{{"id", 261}, {"content", "<x>"}}, {{"id", 260}, {"content", "<y>"}}};
  const Folder folder(file, {{"eos_token", "<y>"}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->encode("<x>a<y>", false, false), (Ids{259, 'a', 260}));
  EXPECT_EQ(tokenizer->eos_id(), 260);
  EXPECT_EQ(tokenizer->vocabulary_size(), 261);
  ASSERT_EQ(tokenizer->notices().size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, tokenizer->notices()[0],
                      "the file gives the token \"<x>\" the id 261, which is not the next free one; it has the id 259");
  EXPECT_TRUE(Folder().open()->notices().empty());
}

// The expected text is that of the package `tokenizers` 0.23.3.
TEST(HuggingFaceTokenizer, AnAddedTokenThatIsMatchedAfterNormalisationIsDecodedAsNormalised) {
  const auto decoded = [](const json& normalizer) {
    json file = with("/normalizer", normalizer);
    file["decoder"] = {{"type", "Fuse"}};
    file["added_tokens"] = {{{"id", 259}, {"content", "<a>"}, {"normalized", true}},
                            {{"id", 260}, {"content", "<q a>"}, {"normalized", false}}};
    const auto tokenizer = Folder(file).open();
    EXPECT_EQ(tokenizer->token_name(259), "<a>");
    return tokenizer->decode(Ids{'a', 259, 260, 'b'});
  };
  EXPECT_EQ(decoded({{"type", "Prepend"}, {"prepend", "▁"}}), "a▁<a><q a>b");
  EXPECT_EQ(decoded({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}}), "a<b><q a>b");
  EXPECT_EQ(decoded({{"type", "NFC"}}), "a<a><q a>b");
}

TEST(HuggingFaceTokenizer, WholePiecesAreTokensWhereTheFileIgnoresMerges) {
  json file = with("/model/ignore_merges", true);
  file["model"]["vocab"][to_byte_alphabet(" she")] = 260;
  EXPECT_EQ(Folder(file).open()->encode("a she", false, false), (Ids{'a', 260}));
  file["model"]["ignore_merges"] = false;
  EXPECT_EQ(Folder(file).open()->encode("a she", false, false), (Ids{'a', ' ', 's', 257}));
}

TEST(HuggingFaceTokenizer, BytesWithoutATokenAreTheUnknownOneOrNothing) {
  json file = small_tokenizer();
  file["model"]["vocab"].erase("x");
  EXPECT_EQ(Folder(file).open()->encode("axxb", false, false), (Ids{'a', 'b'}));
  file["model"]["unk_token"] = "q";
  EXPECT_EQ(Folder(file).open()->encode("axxb", false, false), (Ids{'a', 'q', 'q', 'b'}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(Folder(file).open()->encode("axxb", false, false), (Ids{'a', 'q', 'b'}));
}

TEST(HuggingFaceTokenizer, AnUnknownTokenThatTheVocabularyLacksIsRefusedWhereATextNeedsIt) {
  json file = with("/model/unk_token", "<unk>");
  EXPECT_EQ(Folder(file).open()->encode("axb", false, false), (Ids{'a', 'x', 'b'}));
  file["model"]["vocab"].erase("x");
  file["added_tokens"].push_back({{"id", 260}, {"content", "<unk>"}, {"special", true}});  // is not in model.vocab
  const auto tokenizer = Folder(file).open();
  const auto refusal = [&] { return message_of(ExitCode::bad_data, [&] { tokenizer->encode("axb", false, false); }); };
  EXPECT_PRED_FORMAT2(test::contains, refusal(), "tokenizer.json: the vocabulary lacks \"x\" (U+0078)");
  EXPECT_PRED_FORMAT2(test::contains, refusal(), "and the unk_token \"<unk>\"");
  EXPECT_EQ(tokenizer->encode("ab", false, false), (Ids{'a', 'b'}));
  file["pre_tokenizer"] = nullptr;
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_data, [&] { Folder(file).open()->encode("a東", false, false); }),
                      "\"東\" (U+6771)");
}

TEST(HuggingFaceTokenizer, BeginAndEndAreAddedOnceWhetherThePostProcessorAddsThemOrNot) {
  const json config = {{"bos_token", "<|end|>"}, {"eos_token", {{"content", "z"}}}};
  EXPECT_EQ(Folder(small_tokenizer(), config).open()->encode("a", true, true), (Ids{259, 'a', 'z'}));
  const json both = json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "z"}}],
    "special_tokens": {"<|end|>": {"ids": [259]}, "z": {"ids": [122]}}}]})");
  auto tokenizer = Folder(with("/post_processor", both), config).open();
  EXPECT_EQ(tokenizer->encode("a", true, true), (Ids{259, 'a', 'z'}));
  EXPECT_EQ(tokenizer->encode("a", true, false), (Ids{259, 'a'}));
  EXPECT_EQ(tokenizer->encode("a", false, true), (Ids{'a', 'z'}));
  EXPECT_EQ(tokenizer->encode("a", false, false), (Ids{'a'}));
  // Another token in front does not stand for the beginning, and stays.
  json other = both;
  other["processors"][1]["special_tokens"]["<|end|>"]["ids"] = {'c'};
  EXPECT_EQ(Folder(with("/post_processor", other), config).open()->encode("a", true, true), (Ids{259, 'c', 'a', 'z'}));
}

TEST(HuggingFaceTokenizer, WithoutBeginAndEndTokensNothingIsAdded) {
  EXPECT_EQ(Folder().open()->encode("a", true, true), Ids{'a'});
}

TEST(HuggingFaceTokenizer, FurtherTokensOfTheConfigCount) {
  const json config = {{"eos_token", "<pad>"}, {"added_tokens_decoder", {{"260", {{"content", "<pad>"}}}}}};
  auto tokenizer = Folder(small_tokenizer(), config).open();
  EXPECT_EQ(tokenizer->eos_id(), 260);
  EXPECT_EQ(tokenizer->vocabulary_size(), 261);
  EXPECT_EQ(tokenizer->encode("a<pad>", false, false), (Ids{'a', 260}));
}

TEST(HuggingFaceTokenizer, VocabularyAndMergesInFilesOfTheirOwnAreTheSame) {
  TemporaryFolder folder;
  folder.write("vocab.json", small_tokenizer()["model"]["vocab"].dump());
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }),
                      "there is no merges.txt beside it");
  folder.write("merges.txt", "#version: 0.2\nĠ t\r\nh e\nĠt he\n");
  EXPECT_EQ(open_tokenizer(folder.string())->encode("the then", false, false), (Ids{'t', 257, 258, 'n'}));
  folder.write("merges.txt", "Ġ t\nh ee\n");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }),
                      "merges.txt:2: merges to or from \"ee\", which the vocabulary lacks");
}

TEST(HuggingFaceTokenizer, WhatIsNotReadHereIsNamedWithTheWayOut) {
  auto refused = [](const std::string& pointer, const char* value, const std::string& what) {
    const std::string said = Folder(with(pointer, json::parse(value))).refusal();
    EXPECT_PRED_FORMAT2(test::contains, said, what);
    EXPECT_PRED_FORMAT2(test::contains, said, "Tokenise offline");
  };
  refused("/normalizer", R"({"type": "Lowercase"})", "normalizer is of type Lowercase");
  refused("/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
          "normalizers[0] is of type Lowercase");
  refused("/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "pre_tokenizer is of type BertPreTokenizer");
  refused("/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "a[^b[^c]]"}})",
          "a class inside a class that excludes");
  refused("/post_processor", R"({"type": "Strange"})", "post_processor is of type Strange");
  refused("/decoder", R"({"type": "WordPiece"})", "decoder is of type WordPiece");
  refused("/model/type", R"("Unigram")", "model is of type Unigram");
  refused("/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix");
}

// Expected ids are those of the package `tokenizers` 0.23.3.
TEST(HuggingFaceTokenizer, TheMarkOfTheFirstWordStandsWhereTheOriginalTextBegins) {
  const json mark = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  const auto split = [](const char* text, const char* behavior) -> json {
    return {{"type", "Split"}, {"pattern", {{"String", text}}}, {"behavior", behavior}, {"invert", false}};
  };
  const auto encode = [](const json& normalizer, const json& steps, const std::string& text) {
    json file = with("/model", {{"type", "BPE"},
                                {"vocab", {{"▁", 0}, {"a", 1}, {"b", 2}, {"x", 3}, {"1", 4}, {"é", 5}}},
                                {"merges", json::array()}});
    file["added_tokens"] = json::array();
    file["normalizer"] = normalizer;
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    return Folder(file).open()->encode(text, false, false);
  };
  const json none, without_space = {split(" ", "Removed"), mark}, at_x = {split("x", "Isolated"), mark};
  EXPECT_EQ(encode(none, without_space, "a b"), (Ids{0, 1, 2}));
  EXPECT_EQ(encode(none, without_space, " a b"), (Ids{1, 2}));
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(encode(none, json::array({digits, mark}), "1a"), (Ids{0, 4, 1}));
  EXPECT_EQ(encode(none, json::array({mark, split("a", "Isolated"), mark}), "ab"), (Ids{0, 0, 1, 2}));
  const json prepended = {{"type", "Prepend"}, {"prepend", "x"}};
  EXPECT_EQ(encode(prepended, at_x, "ab"), (Ids{0, 3, 0, 1, 2}));
  const auto replaced = [](const char* kind, const char* from, const char* to) -> json {
    return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
  };
  EXPECT_EQ(encode(replaced("Regex", "^ +", ""), json::array({mark}), "a b"), (Ids{0, 1, 0, 2}));
  EXPECT_EQ(encode(replaced("Regex", "^ +", ""), json::array({mark}), "  a b"), (Ids{1, 0, 2}));
  EXPECT_EQ(encode(replaced("String", "ab", "b"), json::array({mark}), "ab"), Ids{2});
  EXPECT_EQ(encode(replaced("String", "a", "bx"), at_x, "ab"), (Ids{0, 2, 0, 3, 2}));
  const json composed = {{"type", "NFC"}};
  EXPECT_EQ(encode(composed, json::array({split("a", "Isolated"), mark}), "e\u0301a"), (Ids{0, 5, 1}));
}

TEST(HuggingFaceTokenizer, AnExpressionsAnchorsAreThoseOfLines) {
  const auto pieces = [](const char* expression, const std::string& text) {
    json file = with("/model/ignore_merges", true);
    file["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    json& vocabulary = file["model"]["vocab"];
    for (const char* token : {"  ", "a ", " \n", "ab", "\nb"}) {
      if (!vocabulary.contains(to_byte_alphabet(token))) vocabulary[to_byte_alphabet(token)] = 1000 + vocabulary.size();
    }
    auto tokenizer = Folder(file).open();
    std::string all;
    for (int32_t id : tokenizer->encode(text, false, false)) all += tokenizer->decode(Ids{id}) + "|";
    return all;
  };
  EXPECT_EQ(pieces("\\s+$", "a b  "), "a| |b|  |");
  EXPECT_EQ(pieces("\\s+$", "a \nb"), "a| |\nb|");
  EXPECT_EQ(pieces("^b", "\nb"), "\n|b|");
  EXPECT_EQ(pieces("^\n", "\nb"), "\n|b|");
  EXPECT_EQ(pieces("^x|$b", "\nb"), "\nb|");
  EXPECT_EQ(pieces("\\b", "ab ab"), "ab| |ab|");  // matches without characters cut, too
}

TEST(HuggingFaceTokenizer, AnExpressionWithoutEndGivesUp) {
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)+$"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = Folder(with("/pre_tokenizer", split)).open();
  const std::string text = std::string(5000, 'a') + "b";
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { tokenizer->encode(text, false, false); }),
                      "the tokenizer's expression gives up at byte 0 of a text of 5001 bytes");
}

TEST(HuggingFaceTokenizer, ANormalizerThatRepeatsItselfIsBounded) {
  json steps = json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  const auto tokenizer = Folder(with("/normalizer", {{"type", "Sequence"}, {"normalizers", steps}})).open();
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { tokenizer->encode("aaaa", false, false); }),
                      "the tokenizer's normalizer makes more than 1.00 MiB of a text");
}

TEST(HuggingFaceTokenizer, TextsAreNeitherTruncatedNorPadded) {
  json file = with("/truncation", {{"max_length", 2}});
  file["padding"] = {{"strategy", {{"Fixed", 100}}}, {"pad_token", "<|end|>"}};
  EXPECT_EQ(Folder(file).open()->encode("the then", false, false), (Ids{'t', 257, 258, 'n'}));
}

TEST(HuggingFaceTokenizer, DamageIsNamedWithItsPlace) {
  auto refused = [](const std::string& pointer, const char* value, const std::string& what) {
    EXPECT_PRED_FORMAT2(test::contains, Folder(with(pointer, json::parse(value))).refusal(), what);
  };
  refused("/model/vocab/a", "256", "gives the id 256 to");
  refused("/model/vocab/a", "-1", "gives \"a\" the id -1");
  refused("/model/vocab/a", "99999999", "ids are 0 to 3999999");
  refused("/model/merges/1", R"("hx e")", "model.merges[1] merges to or from \"hx\"");
  refused("/model/merges/1", R"("he")", "model.merges[1] is not two tokens");
  refused("/model", "{}", "model has no vocab");
  refused("/added_tokens/0/id", "5", "gives \"<|end|>\" the id 5, but the vocabulary gives that to");
  TemporaryFolder folder;
  folder.write("tokenizer.json", "{\"model\": ");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_tokenizer(folder.string()); }),
                      "tokenizer.json:1:");
  const json config = {{"bos_token", "<missing>"}};
  EXPECT_PRED_FORMAT2(test::contains, Folder(small_tokenizer(), config).refusal(),
                      "names the bos_token \"<missing>\", which is not a token");
}

TEST(HuggingFaceTokenizer, OtherFilesHaveAnotherFingerprint) {
  const uint64_t first = Folder().open()->fingerprint();
  EXPECT_EQ(first, Folder().open()->fingerprint());
  EXPECT_NE(first, Folder(with("/model/ignore_merges", true)).open()->fingerprint());
  EXPECT_NE(first, Folder(small_tokenizer(), {{"bos_token", "z"}}).open()->fingerprint());
}

}  // namespace
}  // namespace titan
