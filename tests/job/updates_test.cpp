#include "titan/job/updates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/config_text.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"

namespace titan {
namespace {

constexpr const char* kMuon = "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n[optimizer]\nname = \"Muon\"\n";

JobConfig config_of(const std::string& text) { return load_config_text(Schema(), text, "job.toml").config; }

std::string problems_of(const std::string& text) {
  const std::vector<ConfigCheck> checks{check_model};
  return format_problems(load_config_text(Schema(), text, "job.toml", {}, checks).problems);
}

std::string group(const char* match, const char* update) {
  return fmt::format("[[optimizer.param_groups]]\nmatch = '{}'\nupdate = \"{}\"\n", match, update);
}

/// The names that Muon steps, of the first layer and outside of layers.
std::vector<std::string> stepped_by_muon(const std::string& text) {
  const JobConfig config = config_of(text);
  const auto choice = update_choice(config.optimizer);
  std::vector<std::string> names;
  for (const UnitDescription& unit : describe_model(config, 256).units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool later = parameter.name.starts_with("layers.") && !parameter.name.starts_with("layers.0.");
      if (!later && choice(unit.role, parameter) == kMuonUpdate) names.push_back(parameter.name);
    }
  }
  return names;
}

TEST(Updates, MuonStepsTheMatricesOfBlocksAndAdamWTheRest) {
  const std::vector<std::string> matrices{
      "layers.0.attention.wq.weight",    "layers.0.attention.wk.weight",    "layers.0.attention.wv.weight",
      "layers.0.attention.wo.weight",    "layers.0.feed_forward.w1.weight", "layers.0.feed_forward.w3.weight",
      "layers.0.feed_forward.w2.weight",
  };
  EXPECT_EQ(stepped_by_muon(kMuon), matrices);
  EXPECT_TRUE(stepped_by_muon("[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n").empty()) << "AdamW steps all";
}

TEST(Updates, GroupsChooseOtherwise) {
  const std::vector<std::string> names = stepped_by_muon(kMuon + group("attention[.]", "adamw"));
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names.front(), "layers.0.feed_forward.w1.weight");
  EXPECT_EQ(stepped_by_muon(kMuon + group("wq", "muon") + group("norm", "by_kind")).size(), 7u);
}

TEST(Updates, ACpuHoldsSmallMatricesForEachThreadAndLargeOnesOneAtATime) {
  OptimizerSection options = config_of(kMuon).optimizer;
  options.muon.dtype = ElementType::float32;
  const auto bytes = update_descriptions(options)[kMuonUpdate].bytes_on_cpu;
  const std::vector<MatrixShape> small(3, {4, 8});
  // X and the next X, XXᵀ and its polynomial.
  constexpr int64_t kOfOne = 4 * (2 * 4 * 8 + 2 * 4 * 4), kMatricesAndUpdates = 2 * 4 * 3 * 4 * 8;
  EXPECT_EQ(bytes(small, 2, /*exchanged=*/true), 2 * kOfOne);
  EXPECT_EQ(bytes(small, 8, /*exchanged=*/true), 3 * kOfOne);
  EXPECT_EQ(bytes(small, 2, /*exchanged=*/false), 2 * kOfOne + kMatricesAndUpdates);
  const std::vector<MatrixShape> large(9, {1024, 2048});
  constexpr int64_t kOfALargeOne = 4 * (2 * 1024 * 2048 + 2 * 1024 * 1024);
  EXPECT_EQ(bytes(large, 4, /*exchanged=*/true), kOfALargeOne);
  EXPECT_EQ(bytes(large, 4, /*exchanged=*/false), kOfALargeOne + 2 * 4 * kElementsAtOnce)
      << "nine are not held at once";
}

TEST(Updates, TheStartSaysHowManyTensorsEachOptimizerSteps) {
  const auto said = [](const std::string& text) {
    const JobConfig config = config_of(text);
    return shared_work(config.optimizer, describe_model(config, 256));
  };
  EXPECT_EQ(said(kMuon), "Muon steps 42 matrices, AdamW 15 other tensors");
  EXPECT_EQ(said(kMuon + group("attention[.]", "adamw")), "Muon steps 18 matrices, AdamW 39 other tensors");
  EXPECT_EQ(said(kMuon + std::string("[[optimizer.param_groups]]\nmatch = 'norm|output|layers[.][1-5]'\n"
                                     "lr_multiplier = 0\n")),
            "Muon steps 7 matrices, AdamW 1 other tensor");
  EXPECT_EQ(said("[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n"), "");
}

TEST(Updates, ThePlanKnowsMomentsDtypeAndOperations) {
  const std::vector<UpdateDescription> updates =
      update_descriptions(config_of(std::string(kMuon) + "[optimizer.muon]\ndtype = \"float32\"\n").optimizer);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_FALSE(updates[kAdamUpdate].whole_matrices);
  const UpdateDescription& muon = updates[kMuonUpdate];
  EXPECT_EQ(muon.moments, std::vector<std::string>{"momentum_buffer"});
  EXPECT_TRUE(muon.whole_matrices);
  EXPECT_EQ(muon.matrix_type, ElementType::float32);
  // Of a matrix of 2 × 3, each of five iterations: XXᵀ and the product with X 2·2·2·3 each, the square 2·2·2·2.
  EXPECT_EQ(muon.operations(2, 3), 5 * (24 + 24 + 16));
  EXPECT_EQ(muon.operations(3, 2), muon.operations(2, 3));
  EXPECT_EQ(update_descriptions(config_of("[optimizer]\nname = \"Adam\"\n").optimizer).size(), 1u);
}

TEST(Updates, WhatMuonDoesNotStepIsRefusedByName) {
  const auto said = [](const char* match) { return problems_of(kMuon + group(match, "muon")); };
  EXPECT_EQ(
      said("tok_embeddings"),
      "job.toml:6:1: optimizer.param_groups asks Muon for tok_embeddings.weight, which is an embedding, whose rows "
      "are looked up, not multiplied; make the pattern narrower: Muon steps the matrices of blocks\n");
  EXPECT_NE(said("^output").find("output.weight, which is the head"), std::string::npos) << said("^output");
  EXPECT_NE(said("^norm").find("norm.weight, which is no matrix;"), std::string::npos) << said("^norm");
  const std::string norms = said("norm");
  EXPECT_EQ(std::count(norms.begin(), norms.end(), '\n'), 1) << "one problem for all: " << norms;
  EXPECT_NE(norms.find("which is no matrix, and for "), std::string::npos) << norms;
  const std::string frozen_norm = problems_of(kMuon + group("^norm", "muon") + "lr_multiplier = 0\n");
  EXPECT_NE(frozen_norm.find("norm.weight, which is no matrix;"), std::string::npos) << "frozen, too: " << frozen_norm;
  EXPECT_EQ(problems_of(kMuon + group("layers.0.attention.wq", "muon") + "lr_multiplier = 0\n"), "");
  EXPECT_EQ(problems_of(kMuon), "");
  EXPECT_NE(problems_of(kMuon + group("layers", "adamw")).find("has no matrix to step"), std::string::npos);
  const std::string frozen = "[[optimizer.param_groups]]\nmatch = 'layers'\nlr_multiplier = 0\n";
  EXPECT_NE(problems_of(kMuon + frozen).find("has no matrix to step"), std::string::npos);
  EXPECT_NE(problems_of(group("wq", "muon")).find("leave update out, or set optimizer.name = \"Muon\""),
            std::string::npos);
}

TEST(Updates, ATiedHeadIsNamedAsTied) {
  std::string tied = kMuon;
  tied.insert(tied.find("[optimizer]"), "[model.override]\nembeddings = \"tied\"\n");
  EXPECT_EQ(problems_of(tied), "");
  const std::string embedding = problems_of(tied + group("tok_embeddings", "muon"));
  EXPECT_NE(embedding.find("which is an embedding and, being tied, the head"), std::string::npos) << embedding;
  const std::string head = problems_of(tied + group("^output", "muon"));
  EXPECT_NE(head.find("\"^output\" matches no parameter"), std::string::npos) << head;
  EXPECT_NE(head.find("output.weight is tied: it is tok_embeddings.weight"), std::string::npos) << head;
  const std::string other = problems_of(tied + group("lm_head", "muon"));
  EXPECT_EQ(other.find("is tied"), std::string::npos) << other;
}

TEST(Updates, WhatMuonDoesNotComposeWithIsRefusedByName) {
  const auto said = [](const char* more) { return problems_of(std::string(kMuon) + more); };
  EXPECT_NE(said("early_step_in_backward = true\n").find("optimizer.early_step_in_backward steps a block before"),
            std::string::npos);
  EXPECT_NE(said("[training]\nenable_cpu_offload = true\n").find("training.enable_cpu_offload keeps gradients"),
            std::string::npos);
  EXPECT_NE(said("lr = 0\n").find("optimizer.lr = 0 with"), std::string::npos);
  EXPECT_NE(said("[optimizer.muon]\nlr = 0\n").find("optimizer.muon.lr = 0 with"), std::string::npos);
  EXPECT_EQ(said("offload = true\nstate_dtype = \"bfloat16\"\n"), "");
}

TEST(Updates, AdviceNamesTheRatesThatTheOptimizerHas) {
  EXPECT_EQ(rates_to_lower(config_of(kMuon).optimizer), "optimizer.lr and optimizer.muon.lr");
  EXPECT_EQ(rates_to_lower(config_of("[optimizer]\nname = \"Adam\"\n").optimizer), "optimizer.lr");
}

TEST(Updates, CoefficientsAreThreeThatOrthogonalise) {
  const std::string text = std::string(kMuon) + "[optimizer.muon]\nns_coefficients = ";
  EXPECT_EQ(problems_of(text + "[2, -1.5, 0.5]"), "");
  EXPECT_NE(problems_of(text + "[2, -1.5]").find("has 2 numbers; it has three"), std::string::npos)
      << problems_of(text + "[2, -1.5]");
  for (const char* nothing : {"[0, 0, 0]", "[-1, 2, 2]", "[2, -1e30, 2]"}) {
    EXPECT_NE(problems_of(text + nothing).find("others do not orthogonalise"), std::string::npos) << nothing;
  }
  const auto word = [](const char* value) {
    const std::vector<std::string> words{std::string("--optimizer.muon.ns_coefficients=") + value};
    return format_problems(load_config_text(Schema(), kMuon, "job.toml", words).problems);
  };
  EXPECT_EQ(word("2,-1.5,0.5"), "");
  EXPECT_NE(word("[2, -1.5, 0.5]").find("in one word a list has commas and no brackets: 2,-1.5,0.5"), std::string::npos)
      << word("[2, -1.5, 0.5]");
  // A published polynomial, of which one step is meant: five would leave all bounds.
  EXPECT_EQ(problems_of(text + "[8.2872, -23.5959, 17.3004]\nns_steps = 1\n"), "");
  for (const char* published : {"[3.4445, -4.775, 2.0315]", "[1.5, -0.5, 0]", "[1.875, -1.25, 0.375]",
                                "[4.0848, -6.8946, 2.927]", "[2.8769, -3.1427, 1.2046]"}) {
    for (const char* steps : {"1", "5", "99"}) {
      EXPECT_EQ(problems_of(text + published + "\nns_steps = " + steps + "\n"), "") << published << steps;
    }
  }
  for (const char* nothing : {"[100, 100, 100]", "[0.5, 0, 0]", "[2, 0, 0]", "[8.2872, -23.5959, 17.3004]"}) {
    const std::string found = problems_of(text + nothing + "\n");
    EXPECT_NE(found.find("optimizer.muon.ns_coefficients = "), std::string::npos) << nothing << found;
    EXPECT_NE(found.find("and should make about 1; choose others"), std::string::npos) << nothing << found;
  }
  EXPECT_NE(problems_of(std::string(kMuon) + "[optimizer.muon]\neps = 1e30\n").find("optimizer.muon.eps"),
            std::string::npos);
}

}  // namespace
}  // namespace titan
