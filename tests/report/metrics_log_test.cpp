#include "titan/report/run_record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "titan/base/error.h"

namespace titan {
namespace {

TEST(MetricsLog, AppendsOneLinePerCallAndKeepsWhatWasThere) {
  const auto path = std::filesystem::temp_directory_path() / ("titan-metrics-" + std::to_string(::getpid()) + ".jsonl");
  const Log log;
  MetricsLog(path, log).append("{\"step\":1}");
  {
    MetricsLog again(path, log);
    again.append("{\"step\":2}");
    again.append("{\"step\":3}");
  }
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  std::filesystem::remove(path);
}

TEST(MetricsLog, AFullDiskCostsOneWarningAndNotTheRun) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs a device that is always full";
  const Log log;
  MetricsLog metrics("/dev/full", log);
  ::testing::internal::CaptureStdout();
  metrics.append("{\"step\":1}");
  metrics.append("{\"step\":2}");
  log.flush();
  const std::string said = ::testing::internal::GetCapturedStdout();
  const size_t first = said.find("/dev/full");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_NE(said.find("No space left"), std::string::npos) << said;
  EXPECT_EQ(said.find("training continues"), said.rfind("training continues")) << said;
}

}  // namespace
}  // namespace titan
