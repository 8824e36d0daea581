#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/model.h"
#include "titan/base/error.h"
#include "titan/train/host_wait_check.h"

namespace titan {
namespace {

using Names = std::vector<std::string>;

const at::Device kCpu{at::kCPU};

TEST(HostWaitCheck, NotesWhatTheHostWouldWaitForOnAGpu) {
  const at::Tensor numbers = at::arange(6, at::kFloat);
  HostWaitCheck check(kCpu, true);
  (void)(numbers * 2 + 1).sum();
  EXPECT_EQ(check.found(), Names{});
  (void)numbers.sum().item<float>();
  (void)numbers.max().item<float>();
  EXPECT_EQ(check.found(), Names{"aten::item"}) << "each once";
  (void)numbers.index({numbers > 2});
  EXPECT_EQ(check.found(), (Names{"aten::item", "aten::nonzero"}));
}

TEST(HostWaitCheck, ListensAsLongAsItLivesAndNotAtAllWhenItIsOff) {
  ASSERT_FALSE(at::hasThreadLocalCallbacks());
  {
    const HostWaitCheck check(kCpu, true);
    EXPECT_TRUE(at::hasThreadLocalCallbacks());
  }
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  HostWaitCheck off(kCpu, false);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  EXPECT_NO_THROW(off.finish());
}

/// A forward and a backward pass, with something done when a group's gradients are complete.
void step(SmallModel& small, const std::function<void()>& inside) {
  const BatchContext batch = small.batch();
  HostWaitCheck check(kCpu, true);
  small.run(batch, [&](const Action& action) {
    if (action.kind == ActionKind::close_gradient) inside();
  });
  check.finish();
}

TEST(HostWaitCheck, AHostSyncThatIsPutIntoAStepFailsItAndIsNamed) {
  SmallModel small(small_request());
  const at::Tensor flag = at::ones({});
  EXPECT_NO_THROW(step(small, [] {}));
  try {
    step(small, [&] { (void)flag.item<float>(); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bug);
    EXPECT_NE(std::string(error.what()).find("the host wait in aten::item"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
