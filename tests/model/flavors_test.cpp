#include <gtest/gtest.h>

#include <set>

#include "support/module_tree.h"
#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/model/llama/llama.h"
#include "titan/model/model.h"

namespace titan {
namespace {

ModelRequest request_for(const std::string& name, const std::string& flavor, int64_t vocabulary = 0) {
  ModelRequest request;
  request.model.name = name;
  request.model.flavor = flavor;
  request.tokenizer_vocabulary = vocabulary;
  return request;
}

ModelDescription describe(const ModelRequest& request) { return describe_model(request); }

struct Row {
  const char* name;
  const char* flavor;
  int64_t tokenizer;  // words of the tokenizer, where the flavor takes its vocabulary from it
  int64_t dim, layers, heads, kv_heads;
  double theta;
  int64_t vocabulary, hidden, parameters;
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name << " " << row.flavor; }

// torchtitan; the debug models' counts follow from their sizes.
const Row kRows[] = {
    {"llama2", "debugmodel", 2000, 256, 8, 16, 16, 1e4, 2000, 768, 7'844'096},
    {"llama2", "271M", 0, 1024, 16, 8, 8, 1e4, 32000, 2816, 271'090'688},
    {"llama2", "1B", 0, 2048, 18, 16, 16, 1e4, 32000, 5632, 1'055'991'808},
    {"llama2", "7B", 0, 4096, 32, 32, 32, 1e4, 32000, 11008, 6'738'415'616},
    {"llama2", "13B", 0, 5120, 40, 40, 40, 1e4, 32000, 13824, 13'015'864'320},
    {"llama2", "26B", 0, 5120, 80, 40, 40, 1e4, 32000, 13824, 25'704'043'520},
    {"llama2", "34B", 0, 8192, 48, 64, 8, 1e6, 32000, 22016, 33'743'970'304},
    {"llama2", "70B", 0, 8192, 80, 64, 8, 1e4, 32000, 28672, 68'976'648'192},
    {"llama3", "debugmodel_d24", 2256, 256, 8, 16, 16, 5e5, 2256, 768, 7'975'168},
    {"llama3", "debugmodel", 2048, 256, 6, 16, 16, 5e5, 2048, 768, 6'163'712},
    {"llama3", "debugmodel", 100, 256, 6, 16, 16, 5e5, 2048, 768, 6'163'712},
    {"llama3", "debugmodel", 2256, 256, 6, 16, 16, 5e5, 2256, 768, 6'163'712 + 2 * 208 * 256},
    {"llama3", "debugmodel_flex_attn", 0, 256, 6, 16, 16, 5e5, 2048, 768, 6'163'712},
    {"llama3", "debugmodel_varlen_attn", 0, 256, 6, 16, 16, 5e5, 2048, 768, 6'163'712},
    {"llama3", "8B", 0, 4096, 32, 32, 8, 5e5, 128256, 14336, 8'030'261'248},
    {"llama3", "8B_flex", 0, 4096, 32, 32, 8, 5e5, 128256, 14336, 8'030'261'248},
    {"llama3", "8B_varlen", 0, 4096, 32, 32, 8, 5e5, 128256, 14336, 8'030'261'248},
    {"llama3", "70B", 0, 8192, 80, 64, 8, 5e5, 128256, 28672, 70'553'706'496},
    {"llama3", "405B", 0, 16384, 126, 128, 8, 5e5, 128256, 53248, 405'853'388'800},
    {"llama3_1", "8B", 0, 4096, 32, 32, 8, 5e5, 128256, 14336, 8'030'261'248},
    {"llama3_1", "70B", 0, 8192, 80, 64, 8, 5e5, 128256, 28672, 70'553'706'496},
    {"llama3_1", "405B", 0, 16384, 126, 128, 8, 5e5, 128256, 53248, 405'853'388'800},
    {"llama3_2", "1B", 0, 2048, 16, 32, 8, 5e5, 128256, 8192, 1'235'814'400},
    {"llama3_2", "3B", 0, 3072, 28, 24, 8, 5e5, 128256, 8192, 3'212'749'824},
};

class Flavors : public ::testing::TestWithParam<Row> {};

TEST_P(Flavors, HaveTheSizesAndParameterCountOfTheTable) {
  const Row& row = GetParam();
  const ModelRequest request = request_for(row.name, row.flavor, row.tokenizer);
  const LlamaArguments a = llama_arguments(request);
  EXPECT_EQ(a.dim, row.dim);
  EXPECT_EQ(a.layers, row.layers);
  EXPECT_EQ(a.heads, row.heads);
  EXPECT_EQ(a.kv_heads, row.kv_heads);
  EXPECT_EQ(a.hidden, row.hidden);
  EXPECT_EQ(a.vocabulary, row.vocabulary);
  EXPECT_EQ(a.rope_theta, row.theta);
  EXPECT_EQ(a.norm_epsilon, 1e-5);
  EXPECT_EQ(describe(request).parameter_count(), row.parameters);
}

TEST_P(Flavors, AreBuiltOnTheMetaDeviceWithoutMemory) {
  const Row& row = GetParam();
  const ModelRequest request = request_for(row.name, row.flavor, row.tokenizer);
  const auto model = find_model_family(row.name)->build(request, {});
  int64_t in_tree = 0, in_handles = 0;
  for (const auto& [name, tensor] : module_tree(*model)->named_parameters().pairs()) {
    EXPECT_TRUE(tensor.is_meta()) << name;
    in_tree += tensor.numel();
  }
  for (const auto& parameter : model->parameter_handles()) {
    EXPECT_FALSE(parameter->master.defined()) << parameter->name();
    in_handles += parameter->spec().numel();
  }
  EXPECT_EQ(in_tree, row.parameters);
  EXPECT_EQ(in_handles, row.parameters);
  EXPECT_EQ(static_cast<int64_t>(model->chain().size()), row.layers + 2);
}

INSTANTIATE_TEST_SUITE_P(Llama, Flavors, ::testing::ValuesIn(kRows));

TEST(Llama, TheTableHasEveryFlavorThatIsTestedHereAndNoOther) {
  std::set<std::pair<std::string, std::string>> tested, offered;
  for (const Row& row : kRows) {
    if (std::string(row.name) != "llama3_1") tested.emplace(row.name, row.flavor);
  }
  const Architecture& architecture = *find_architecture("llama3");
  for (const std::string name : {"llama2", "llama3", "llama3_2"}) {
    for (const std::string& flavor : architecture.flavors(name)) offered.emplace(name, flavor);
  }
  EXPECT_EQ(tested, offered);
  EXPECT_EQ(architecture.flavors("llama3_1"), architecture.flavors("llama3"));
  EXPECT_EQ(find_model_family("gpt2"), nullptr);
}

TEST(Llama, HiddenSizeTruncatesTwiceAndRoundsUpOnce) {
  EXPECT_EQ(llama_hidden_size(256, 0, 256), 768);
  EXPECT_EQ(llama_hidden_size(4096, 0, 256), 11008);
  EXPECT_EQ(llama_hidden_size(4096, 1.3, 1024), 14336);
  EXPECT_EQ(llama_hidden_size(100, 0, 1), 266) << "8·100/3 = 266.67 is cut";
  EXPECT_EQ(llama_hidden_size(100, 1.3, 1), 345) << "1.3·266 = 345.8 is cut again";
  EXPECT_EQ(llama_hidden_size(96, 0, 256), 256) << "an exact multiple stays";
}

TEST(Llama, FlopsPerTokenFollowTheFormulaOfTheWholeModel) {
  EXPECT_EQ(describe(request_for("llama3", "8B")).flops_per_token(8192), 57'914'449'920);
  EXPECT_EQ(describe(request_for("llama3", "70B")).flops_per_token(8192), 481'442'709'504);
  EXPECT_EQ(describe(request_for("llama3", "405B")).flops_per_token(8192), 2'625'449'459'712);
  EXPECT_EQ(describe(request_for("llama3", "debugmodel_d24", 2256)).flops_per_token(2048), 94'717'440);
}

TEST(Llama, ScalingFollowsTheNameUnlessItIsGiven) {
  auto scaling = [](const std::string& name, const std::string& flavor, const std::string& wanted) {
    ModelRequest request = request_for(name, flavor);
    request.model.rope_scaling = wanted;
    const auto found = llama_arguments(request).rope_scaling;
    return found ? found->factor : 0.0;
  };
  EXPECT_EQ(scaling("llama2", "7B", "default"), 0);
  EXPECT_EQ(scaling("llama3", "8B", "default"), 0);
  EXPECT_EQ(scaling("llama3", "405B", "default"), 0);
  EXPECT_EQ(scaling("llama3_1", "405B", "default"), 8);
  EXPECT_EQ(scaling("llama3_2", "1B", "default"), 32);
  EXPECT_EQ(scaling("llama3", "8B", "llama3_1"), 8);
  EXPECT_EQ(scaling("llama3_1", "8B", "none"), 0);
  EXPECT_EQ(scaling("llama3_1", "8B", "llama3_2"), 32);
  const RotaryScaling published = *llama_arguments(request_for("llama3_1", "8B")).rope_scaling;
  EXPECT_EQ(published.low_freq_factor, 1.0);
  EXPECT_EQ(published.high_freq_factor, 4.0);
  EXPECT_EQ(published.original_context, 8192);
}

TEST(Llama, PlainLlama3SaysThatItDoesNotScaleAndOthersSayNothing) {
  const Architecture& architecture = *find_architecture("llama3");
  const auto notes = architecture.notes(request_for("llama3", "405B"));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("no rotary scaling"), std::string::npos);
  EXPECT_NE(notes[0].find("llama3_1"), std::string::npos);
  EXPECT_TRUE(architecture.notes(request_for("llama3_1", "8B")).empty());
  ModelRequest chosen = request_for("llama3", "8B");
  chosen.model.rope_scaling = "none";
  EXPECT_TRUE(architecture.notes(chosen).empty());
}

TEST(Llama, OnlyTheFlexAndVarlenFlavorsStopAtDocumentBounds) {
  for (const LlamaFlavor& flavor : llama_flavors()) {
    const bool named = flavor.name.ends_with("_flex") || flavor.name.ends_with("_flex_attn") ||
                       flavor.name.ends_with("_varlen") || flavor.name.ends_with("_varlen_attn");
    EXPECT_EQ(flavor.block_causal, named) << flavor.name;
    if (flavor.family == "qwen3") continue;  // of which some sizes are tied
    EXPECT_EQ(flavor.tied, flavor.family == "llama3_2") << flavor.name;
  }
}

TEST(Qwen3, FlavorsHaveTheSizesOfThePublishedModels) {
  const std::pair<std::string, int64_t> published[] = {{"0.6B", 596'049'920},   {"1.7B", 1'720'574'976},
                                                       {"4B", 4'022'468'096},   {"8B", 8'190'735'360},
                                                       {"14B", 14'768'307'200}, {"32B", 32'762'123'264}};
  const Architecture& architecture = *find_architecture("qwen3");
  std::vector<std::string> names;
  for (const auto& [name, parameters] : published) {
    names.push_back(name);
    const ModelDescription model = describe_model(request_for("qwen3", name));
    EXPECT_EQ(model.parameter_count(), parameters) << name;
    EXPECT_EQ(model.head_dim, 128) << name;
    EXPECT_EQ(model.kv_heads, 8) << name;
    EXPECT_EQ(model.longest_text, 40960) << name;
  }
  EXPECT_EQ(architecture.flavors("qwen3"), names);
  EXPECT_TRUE(architecture.flavors("qwen2").empty());
}

std::string refusal(const ModelRequest& request) {
  try {
    describe(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    return error.what();
  }
  return "accepted";
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Llama, AnUnknownFlavorIsRefusedWithTheNearestAndTheWholeList) {
  const std::string text = refusal(request_for("llama3", "8b"));
  expect_says(text, "model.flavor = \"8b\"");
  expect_says(text, "did you mean \"8B\"?");
  expect_says(text, "405B");
  expect_says(refusal(request_for("llama2", "405B")), "is not a flavor of llama2");
}

TEST(Llama, ASequenceBeyondTheModelsContextIsRefusedWithBothLengths) {
  ModelRequest request = request_for("llama2", "7B");
  request.sequence_length = 4096;
  EXPECT_EQ(refusal(request), "accepted");
  request.sequence_length = 4097;
  expect_says(refusal(request), "training.seq_len = 4097");
  expect_says(refusal(request), "4096 tokens");
  request.model.max_seq_len = 8192;
  EXPECT_EQ(refusal(request), "accepted");
  request = request_for("llama3", "8B");
  request.sequence_length = 131072;
  EXPECT_EQ(refusal(request), "accepted");
  ++request.sequence_length;
  expect_says(refusal(request), "131072");
}

TEST(Llama, ATokenizerLargerThanTheVocabularyIsRefusedWithBothSizes) {
  const std::string text = refusal(request_for("llama2", "7B", 128256));
  expect_says(text, "128256");
  expect_says(text, "32000");
  expect_says(refusal(request_for("llama2", "debugmodel", 0)), "no tokenizer was given");
}

TEST(Llama, SizesThatDoNotFitTogetherAreRefused) {
  auto with = [](ModelOverrideSection sizes) {
    ModelRequest request = request_for("llama3", "debugmodel");
    request.model.override_sizes = sizes;
    return request;
  };
  expect_says(refusal(with({.dim = 100, .n_heads = 3})), "dim = 100 is not a multiple of n_heads = 3");
  expect_says(refusal(with({.n_heads = 16, .n_kv_heads = 3})), "n_kv_heads = 3");
  expect_says(refusal(with({.dim = 48, .n_heads = 16})), "odd");
}

TEST(Llama, SizesOfTheConfigReplaceTheFlavors) {
  ModelRequest request = request_for("llama3", "8B");
  request.model.override_sizes = {
      .dim = 64, .n_layers = 2, .n_heads = 8, .n_kv_heads = 4, .multiple_of = 16, .vocab_size = 300};
  const LlamaArguments a = llama_arguments(request);
  EXPECT_EQ(a.head_dim, 8);
  EXPECT_EQ(a.layers, 2);
  EXPECT_EQ(a.kv_heads, 4);
  EXPECT_EQ(a.vocabulary, 300);
  EXPECT_EQ(a.hidden, llama_hidden_size(64, 1.3, 16));
  request.model.override_sizes.n_kv_heads = 0;
  EXPECT_EQ(llama_arguments(request).kv_heads, 8) << "given heads without key-value heads: as many";
}

}  // namespace
}  // namespace titan
