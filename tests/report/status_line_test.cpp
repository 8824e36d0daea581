#include "titan/report/status_line.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

StepReport a_step() {
  StepReport report;
  report.step = 1240;
  report.total_steps = 10000;
  report.loss = 2.81342;
  report.tokens_per_second = 11820.4;
  report.flops_per_token = 36'062'944'162;
  report.peak_flops = 989e12;
  report.memory_bytes = int64_t{61} << 30;
  report.memory_total = int64_t{79} << 30;
  report.data_wait_seconds = 0.0003;
  report.eta_seconds = 13260;
  return report;
}

TEST(StatusLine, SaysWhereTheRunIsHowFastAndHowLongYet) {
  EXPECT_EQ(status_line(a_step(), 120),
            "step 1,240/10,000 12.4%  loss 2.8134  tok/s 11,820  mfu 43.1%  mem 61.0/79.0G  data 0.3ms  eta 3h41m");
}

TEST(StatusLine, LeavesOutWhatMattersLeastWhereATerminalIsNarrow) {
  EXPECT_EQ(status_line(a_step(), 80), "step 1,240/10,000 12.4%  loss 2.8134  tok/s 11,820  mfu 43.1%  eta 3h41m");
  EXPECT_EQ(status_line(a_step(), 40), "step 1,240/10,000 12.4%  loss 2.8134");
  EXPECT_EQ(status_line(a_step(), 10), "step 1,240");
}

TEST(StatusLine, GuessesNoUtilisation) {
  StepReport report = a_step();
  report.peak_flops.reset();
  EXPECT_EQ(status_line(report, 120).find("mfu"), std::string::npos);
}

}  // namespace
}  // namespace titan
