#include "titan/tools/selftest.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/files.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/config/load.h"
#include "titan/corpus/token_file.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

using test::TemporaryFolder;

TEST(SelftestRows, LayoutsFitTheRanksAndTheirConfigsHaveNoProblems) {
  const Schema schema;
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8, 16, 64}) {
    std::set<std::string> names;
    const std::vector<SelftestRow> rows = selftest_rows(ranks, true);
    for (const SelftestRow& row : rows) {
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
      std::vector<std::string> words = selftest_words(ranks, "ids.bin");
      words.insert(words.end(), row.words.begin(), row.words.end());
      const LoadedConfig loaded = load_config(schema, words, job_checks());
      for (const Problem& problem : loaded.problems) ADD_FAILURE() << ranks << " " << row.name << ": " << problem.what;
      for (const Problem& problem : world_problems(loaded.config, loaded.origins, ranks)) {
        ADD_FAILURE() << ranks << " " << row.name << ": " << problem.what;
      }
    }
    EXPECT_EQ(selftest_rows(ranks, false).size() + 1, rows.size());
  }
  EXPECT_GT(selftest_rows(8, false).size(), 10u) << "all parallelisms and their pairs";
}

class SelftestComparison : public ::testing::Test {
 protected:
  /// A dump of three steps with a loss and one gradient.
  void write(const std::string& run, double loss, double gradient) const {
    for (int64_t step = 1; step <= kSelftestSteps; ++step) {
      const std::filesystem::path folder = folder_ / run / "debug" / ("step-" + std::to_string(step));
      std::filesystem::create_directories(folder);
      const auto number = [](double value) { return at::full({}, value, at::kDouble); };
      write_safetensors(folder / "step.safetensors", {{"loss", number(loss)},
                                                      {"grad_norm", number(2)},
                                                      {"grad.norm.weight", at::full({4}, gradient, at::kFloat)}});
    }
  }
  SelftestResult compared() const { return compare_selftest({"row", {}, {}}, folder_ / "row", folder_ / "reference"); }

  TemporaryFolder folder_;
};

TEST_F(SelftestComparison, ErrorsAreRelativeAndTheParameterIsNamed) {
  write("reference", 4, 1);
  write("row", 4, 1);
  EXPECT_TRUE(compared().passed());
  write("row", 4, 1.001);
  const SelftestResult result = compared();
  EXPECT_FALSE(result.passed());
  EXPECT_NEAR(result.gradients, 1e-3, 1e-6);
  EXPECT_EQ(result.worst_parameter, "norm.weight");
  EXPECT_NE(selftest_line(result).find("FAIL row"), std::string::npos);
  EXPECT_NE(selftest_line(result).find("the worst gradient is that of norm.weight"), std::string::npos);
  write("row", 4.004, 1);
  EXPECT_NEAR(compared().loss, 1e-3, 1e-9);
  EXPECT_EQ(selftest_line(compared()).find("gradient is that of"), std::string::npos);
  EXPECT_FALSE(compared().passed());
}

TEST_F(SelftestComparison, WhatIsNotFiniteFails) {
  write("reference", 4, 1);
  write("row", std::nan(""), 1);
  EXPECT_FALSE(compared().passed());
  write("row", 4, std::nan(""));
  EXPECT_FALSE(compared().passed());
}

TEST(SelftestVerdict, CountsTheRowsThatFailed) {
  std::vector<SelftestResult> results(8);
  EXPECT_EQ(
      selftest_verdict(results, 1, "a CPU"),
      "selftest passed: 8 of 8 rows on 1 rank (a CPU); layouts and recomputation were compared, not the processor's "
      "products");
  EXPECT_EQ(selftest_verdict(results, 1, "a GPU", /*on_gpu=*/true), "selftest passed: 8 of 8 rows on 1 rank (a GPU)");
  for (size_t row = 0; row < 6; ++row) results[row].loss = 1;
  EXPECT_EQ(selftest_verdict(results, 2, "a CPU"), "selftest failed: 6 of 8 rows failed on 2 ranks (a CPU)");
}

TEST(SelftestCorpus, HoldsTheIdsOfAllBatches) {
  const TemporaryFolder folder;
  write_selftest_corpus(folder / "ids.bin", 8);
  TokenFile file(folder / "ids.bin");
  EXPECT_GE(file.facts().tokens, 3 * 16 * 33);
  std::vector<int32_t> ids;
  file.document(0).append_to(ids);
  EXPECT_EQ(std::ssize(ids), file.facts().tokens);
  EXPECT_GT(std::set<int32_t>(ids.begin(), ids.end()).size(), 200u);
}

}  // namespace
}  // namespace titan
