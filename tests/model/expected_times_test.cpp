// The page of expected times: it is what the code says, and the code counts what the models have.
#include <gtest/gtest.h>

#include "bench/expected_times.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

TEST(ExpectedTimes, ThePageIsWhatTheCodeWrites) {
  EXPECT_EQ(read_file(checkout() / "docs" / "benchmarks" / "h200_expected.md"), expected_times_page())
      << "scripts/bench/expected.sh writes it";
}

TEST(ExpectedTimes, CountTheParametersOfTheModel) {
  for (const auto& [name, flavor] : {std::pair{"llama3_1", "8B"}, {"llama3_2", "3B"}, {"llama3_2", "1B"}}) {
    const LlamaArguments arguments = arguments_of(name, flavor);
    ModelRequest request;
    request.name = name;
    request.flavor = flavor;
    request.tokenizer_vocabulary = 128256;
    request.sequence_length = ExpectedStep::kTokens;
    EXPECT_EQ(ExpectedStep(arguments, false).parameters(), llama_family().describe(request).parameter_count()) << name;
  }
}

/// Llama 3.1 8B by hand: 45.03 GFLOP of products and 6.44 of causal attention a token (FLOPs conventions of the
/// benchmarks' page).
TEST(ExpectedTimes, CountTheOperationsOfTheModel) {
  const ExpectedStep step(arguments_of("llama3_1", "8B"), false);
  double products = 0, attention = 0;
  for (const ExpectedPart& part : step.parts()) (part.name == "attention" ? attention : products) += part.operations;
  EXPECT_NEAR(products / ExpectedStep::kTokens / 1e9, 45.03, 0.005);
  EXPECT_NEAR(attention / ExpectedStep::kTokens / 1e9, 6.44, 0.005);
}

TEST(ExpectedTimes, Float8TakesLessInProductsThanItsCastsCost) {
  for (const char* flavor : {"1B", "3B"}) {
    const ExpectedStep bf16(arguments_of("llama3_2", flavor), false), float8(arguments_of("llama3_2", flavor), true);
    EXPECT_LT(float8.seconds(), bf16.seconds()) << flavor;
    EXPECT_EQ(float8.parts().size(), bf16.parts().size() + 3);  // casts, amaxes, sums of gradients
  }
}

}  // namespace
}  // namespace titan
