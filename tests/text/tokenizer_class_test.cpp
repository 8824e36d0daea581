#include "src/text/tokenizer_class.h"

#include <gtest/gtest.h>

#include <string>

#include "src/text/model_classes.h"

namespace titan {
namespace {

/// The class for a config.json of this model_type and a tokenizer_config.json that names `named`.
std::string chosen(const std::string& type, const std::string& named, bool has_code = false, bool byte_level = false) {
  ModelConfig model;
  model.type = type;
  const ChosenClass made = choose_tokenizer_class(model, named, has_code, [&] { return byte_level; });
  return made.needs_code ? "code" : made.name;
}

TEST(TokenizerClass, IsTheNamedOneUnlessTheModelsOwnIsTheGenericOneOrTheFilesOfTheModelNameAWrongOne) {
  EXPECT_EQ(chosen("llama", "LlamaTokenizerFast"), "LlamaTokenizer");
  EXPECT_EQ(chosen("qwen3", "LlamaTokenizer"), "LlamaTokenizer");
  EXPECT_EQ(chosen("mistral", "LlamaTokenizer"), kGenericClass);
  EXPECT_EQ(chosen("qwen2", "LlamaTokenizer"), "Qwen2Tokenizer");
  EXPECT_EQ(chosen("qwen4_exp", "Qwen2Tokenizer"), "Qwen3_5Tokenizer");
  EXPECT_EQ(chosen("hyperclovax_vision_v2", "LlamaTokenizer"), "GPT2Tokenizer");
  EXPECT_EQ(chosen("", "MyTokenizer"), "MyTokenizer");
}

TEST(TokenizerClass, OfModelsThatReadImagesOrSoundsIsKnown) {
  for (const char* type : {"llava", "llava_next", "pixtral", "molmo", "glm4v", "kimi_k25", "voxtral", "smolvlm"}) {
    EXPECT_EQ(chosen(type, "LlamaTokenizer"), kGenericClass) << type;
  }
  for (const char* type : {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_omni", "internvl"}) {
    EXPECT_EQ(chosen(type, ""), "Qwen2Tokenizer") << type;
  }
  EXPECT_EQ(chosen("aya_vision", ""), "CohereTokenizer");
}

TEST(TokenizerClass, OfTheFirstLlamasIsNotThatOfAByteLevelFileWhichNamesIt) {
  EXPECT_EQ(chosen("llama", "LlamaTokenizer", false, /*byte_level=*/true), kGenericClass);
  EXPECT_EQ(chosen("qwen2", "LlamaTokenizer", false, /*byte_level=*/true), "Qwen2Tokenizer");
  EXPECT_EQ(chosen("idefics", "", false, /*byte_level=*/true), "LlamaTokenizer");  // not named, but the model's
}

TEST(TokenizerClass, IsUsedWithoutTheCodeBesideTheFilesWhereTransformersHasOne) {
  EXPECT_EQ(chosen("", "MyTokenizer", /*has_code=*/true), "code");
  EXPECT_EQ(chosen("llama", "", /*has_code=*/true), "code");
  EXPECT_EQ(chosen("llama", "PreTrainedTokenizerFast", /*has_code=*/true), "PreTrainedTokenizer");
  EXPECT_EQ(chosen("qwen3", "MyTokenizer", /*has_code=*/true), "MyTokenizer");
  EXPECT_EQ(chosen("internlm2", "MyTokenizer", /*has_code=*/true), "MyTokenizer");
  EXPECT_EQ(chosen("qwen3", "", /*has_code=*/true), "Qwen2Tokenizer");
}

TEST(TokenizerClass, TheModelsThatTransformersKnowsAreThoseWithAClassAndThoseWithout) {
  EXPECT_TRUE(is_known_model("llama"));
  EXPECT_TRUE(is_known_model("qwen2_vl"));
  for (const char* unknown : {"", " ", "qwen2 ", "llama llama4", "nobody_knows"}) EXPECT_FALSE(is_known_model(unknown));
}

TEST(TokenizerClass, AFileIsOfVersionFiveFromItsReleaseOn) {
  const auto is_new = [](const char* version) {
    ModelConfig model;
    model.transformers_version = version;
    return model.is_of_version_5();
  };
  for (const char* version : {"5.0.0", "5", "5.0.0.post1", "5.24.0", "5.1.0.dev0", "6.0.0rc1", "10.0", "v5.0.0"}) {
    EXPECT_TRUE(is_new(version)) << version;
  }
  for (const char* version : {"", "4.57.1", "5.0.0.dev0", "5.0.0rc1", "5.0.0a1", "0.5", "unknown"}) {
    EXPECT_FALSE(is_new(version)) << version;
  }
}

}  // namespace
}  // namespace titan
