#include "src/train/attention_choice.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

using enum AttentionKernel;

TEST(AttentionChoice, RefusesAKernelThatTheRunCannotUseAndSaysWhy) {
  EXPECT_EQ(why_not(cudnn, {}), "");
  EXPECT_NE(why_not(cudnn, {.on_cpu = true}).find("a CPU"), std::string::npos);
  EXPECT_NE(why_not(efficient, {.on_cpu = true}).find("a CPU"), std::string::npos);
  EXPECT_NE(why_not(flash, {.in_bf16 = false}).find("fp32"), std::string::npos);
  EXPECT_EQ(why_not(efficient, {.in_bf16 = false}), "");
  EXPECT_NE(why_not(cudnn, {.documents = true}).find("document lengths vary"), std::string::npos);
  EXPECT_NE(why_not(cudnn, {.deterministic = true}).find("gradients vary"), std::string::npos);
  EXPECT_EQ(why_not(flash, {.documents = true, .deterministic = true}), "");
}

}  // namespace
}  // namespace titan
