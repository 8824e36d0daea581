#include "titan/base/log.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "titan/base/filesystem.h"

namespace titan {
namespace {

class LogFile : public testing::Test {
 protected:
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "titan-log-test";
  std::filesystem::path file_ = folder_ / "logs" / "rank-0003.log";

  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(LogFile, IsMadeWithItsFoldersAtTheFirstLine) {
  const Log log({.console = false, .file = file_});
  EXPECT_FALSE(std::filesystem::exists(folder_));
  log.info("hello");
  EXPECT_TRUE(read_file(file_).ends_with(" - root - INFO - hello\n"));
}

TEST_F(LogFile, TakesLinesAfterThoseOfAnEarlierRun) {
  for (const char* line : {"first", "second"}) Log({.console = false, .file = file_}).info(line);
  const std::string text = read_file(file_);
  EXPECT_LT(text.find("first"), text.find("second"));
}

TEST_F(LogFile, SendsWarningsAndErrorsAlsoToStandardErrorBehindThePrefix) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  {
    const Log log({.console = false, .file = file_, .error_prefix = "[rank 3] "});
    log.info("a step - and more");
    log.warning("slow - very");
    log.error("broken");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[rank 3] warning: slow - very\n[rank 3] titan_train: broken\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  const std::string text = read_file(file_);
  for (const char* line : {"INFO - a step - and more\n", "WARNING - slow - very\n", "ERROR - broken\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
}

TEST_F(LogFile, ThatCannotBeWrittenCostsLinesAndOneWarningAndNotTheRun) {
  const std::string below_a_device = "/dev/null/logs/rank.log";
  for (const auto& [path, reason] :
       {std::pair{std::string("/dev/full"), "No space left on device"}, std::pair{below_a_device, "Not a directory"}}) {
    testing::internal::CaptureStderr();
    {
      const Log log({.console = false, .file = path, .error_prefix = "[rank 3] "});
      for (const char* line : {"lost", "lost too"}) log.info(line);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              fmt::format("[rank 3] warning: this rank's log is not being written to {}: {}; the run goes on without "
                          "it\n",
                          path, reason));
  }
}

}  // namespace
}  // namespace titan
