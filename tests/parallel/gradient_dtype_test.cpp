// Gradients of blocks in bf16 (training.gradient_dtype) against those in fp32, in whole passes of small models.
#include <gtest/gtest.h>

#include "support/model.h"
#include "support/selections.h"
#include "titan/base/error.h"

namespace titan {
namespace {

TEST(GradientDtype, GradientsOfBlocksInBf16AreThoseInFp32RoundedOnce) {
  for (const char* family : {"llama3", "llama3_2", "qwen2", "qwen3"}) {
    for (const NamedSelection& named : all_selections()) {
      SCOPED_TRACE(fmt::format("{}, {}", family, named.name));
      PlanRequest request = plan_in(ElementType::bfloat16, named.selection);
      SmallModel wide(small_request(family), request);
      request.training.gradient_dtype = ElementType::bfloat16;
      SmallModel narrow(small_request(family), request);
      const BatchContext batch = wide.batch();
      EXPECT_TRUE(same_bits(narrow.run(batch), wide.run(batch)));
      const auto expected = wide.gradients();
      for (const auto& [name, gradient] : narrow.gradients()) {
        const at::ScalarType type = name.starts_with("layers.") ? at::kBFloat16 : at::kFloat;
        EXPECT_EQ(gradient.scalar_type(), type) << name;
        EXPECT_TRUE(same_bits(gradient, expected.at(name).to(type))) << name;
      }
      EXPECT_EQ(narrow.executor->gradient_bytes(), memory_of(narrow.plan).at("gradients"));
    }
  }
}

}  // namespace
}  // namespace titan
