// Degrees that do not fit the model or the lengths of its sequences, told with those that do.
#include <gtest/gtest.h>

#include "said.h"

namespace titan {
namespace {

constexpr const char* kTensor = "--parallelism.tensor_parallel_degree=";
constexpr const char* kContext = "--parallelism.context_parallel_degree=";
constexpr const char* kLength = "--training.seq_len=";

void expect_said(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
  const std::string text = said(words);
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

std::string with(const char* option, int64_t value) { return option + std::to_string(value); }

TEST(DegreeChecks, ADegreeThatDoesNotDivideHeadsIsToldWithThoseThatDo) {
  expect_said({with(kTensor, 3), with(kLength, 96)},
              {"does not divide 16 heads of llama3 debugmodel; degrees that do: 1, 2, 4, 8, 16"});
  expect_said({with(kTensor, 4), "--model.override.n_kv_heads=2"},
              {"does not divide 2 heads of keys and values of llama3 debugmodel; degrees that do: 1, 2"});
  EXPECT_EQ(said({with(kTensor, 4)}), "");
}

TEST(DegreeChecks, DegreesThatDivideTheHeadsAndNotTheSequenceAreNotNamed) {
  expect_said({with(kTensor, 3), with(kLength, 36)}, {"does not divide 16 heads", "degrees that do: 1, 2, 4\n"});
  expect_said({with(kTensor, 3), with(kContext, 2), with(kLength, 24)}, {"degrees that do: 1, 2\n"});
}

TEST(DegreeChecks, ASequenceThatTensorParallelRanksCannotShareIsToldWithLengthsAndDegreesThatDo) {
  expect_said({with(kTensor, 4), with(kLength, 66)},
              {"training.seq_len = 66 is no multiple of 4 (tensor_parallel_degree); use 64 or 68; or keep the length, "
               "with tensor_parallel_degree = 1, 2\n"});
  expect_said({with(kTensor, 4), with(kLength, 3)}, {"use 4; or keep the length, with tensor_parallel_degree = 1\n"});
  EXPECT_EQ(said({with(kLength, 7)}), "");
}

TEST(DegreeChecks, ASequenceThatContextParallelRanksCannotShareIsToldWithLengthsAndDegreesThatDo) {
  expect_said({with(kContext, 4), with(kLength, 20)},
              {"training.seq_len = 20 is no multiple of 8 (tensor_parallel_degree × 2 × context_parallel_degree",
               "use 16 or 24; or keep the length, with context_parallel_degree = 1, 2, 5, 10\n"});
  EXPECT_EQ(said({with(kContext, 4), with(kLength, 20), "--parallelism.context_parallel_load_balancer=none"}), "");
  expect_said({with(kContext, 4), with(kLength, 6), "--parallelism.context_parallel_load_balancer=none"},
              {"training.seq_len = 6 is no multiple of 4 (tensor_parallel_degree × context_parallel_degree)",
               "use 4 or 8; or keep the length, with context_parallel_degree = 1, 2, 3, 6\n"});
}

TEST(DegreeChecks, OfBothKindsOfRanksEachIsToldWhatWouldDoBesideTheOther) {
  expect_said({with(kTensor, 2), with(kContext, 4), with(kLength, 24)},
              {"training.seq_len = 24 is no multiple of 16",
               "use 16 or 32; or keep the length, with "
               "tensor_parallel_degree = 1, or context_parallel_degree = 1, 2, 3, 6\n"});
  EXPECT_EQ(said({with(kTensor, 2), with(kContext, 4), with(kLength, 32)}), "");
  expect_said({with(kTensor, 4), with(kContext, 4), with(kLength, 6)},
              {"or keep the length, with tensor_parallel_degree = 1 and context_parallel_degree = 1, 3\n"});
}

TEST(DegreeChecks, SequencesAreLookedAtBesideAModelThatContradictsItselfOrIsUnknown) {
  const std::string told = "training.seq_len = 66 is no multiple of 4 (tensor_parallel_degree); use 64 or 68; or keep";
  expect_said({with(kTensor, 4), with(kLength, 66), "--model.override.n_heads=7"}, {told, "n_heads = 7"});
  expect_said({with(kTensor, 4), with(kLength, 66), "--model.flavor=zebra"}, {told, "has no flavor"});
}

TEST(DegreeChecks, AValidationSequenceDividesAmongTheRanksTooAndCountsForTheDegrees) {
  expect_said({with(kContext, 4), with(kLength, 64), "--validation.enable", "--validation.dataset=stories",
               "--validation.seq_len=12"},
              {"validation.seq_len = 12 is no multiple of 8", "context_parallel_degree = 1, 2\n"});
}

TEST(DegreeChecks, AValidationSequenceThatFollowsTrainingsIsNoSecondProblem) {
  const std::vector<std::string> words{with(kContext, 4), with(kLength, 60), "--validation.enable",
                                       "--validation.dataset=stories"};
  EXPECT_EQ(said(words).find("validation.seq_len"), std::string::npos) << said(words);
  std::vector<std::string> both = words;
  both.emplace_back("--validation.seq_len=60");
  expect_said(both, {"training.seq_len = 60 is no multiple of 8", "validation.seq_len = 60 is no multiple of 8"});
}

}  // namespace
}  // namespace titan
