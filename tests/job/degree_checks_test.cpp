// Degrees that fit the model and the lengths of its sequences; what is said of those that do not:
// tests/golden/plan.txt.
#include <gtest/gtest.h>

#include "support/config_problems.h"

namespace titan {
namespace {

constexpr const char* kTensor = "--parallelism.tensor_parallel_degree=";
constexpr const char* kContext = "--parallelism.context_parallel_degree=";
constexpr const char* kLength = "--training.seq_len=";

std::string with(const char* option, int64_t value) { return option + std::to_string(value); }

TEST(DegreeChecks, DegreesThatDivideHeadsAndSequencesHaveNothingAgainstThem) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{with(kTensor, 4)},
        {with(kLength, 7)},
        {with(kTensor, 2), with(kContext, 4), with(kLength, 32)},
        {with(kContext, 4), with(kLength, 20), "--parallelism.context_parallel_load_balancer=none"}}) {
    EXPECT_EQ(config_problems(words), "");
  }
}

}  // namespace
}  // namespace titan
