#include "titan/report/run_record.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
  // The file has the size that a file may have.
  constexpr rlim_t kMost = 1 << 20;
  const std::string path = std::filesystem::temp_directory_path() / ("titan-full-" + std::to_string(::getpid()));
  std::ofstream(path).flush();
  std::filesystem::resize_file(path, kMost);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{kMost, before.rlim_max};
  auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const Log log;
  MetricsLog metrics(path, log);
  ::testing::internal::CaptureStdout();
  metrics.append("{\"step\":1}");
  metrics.append("{\"step\":2}");
  log.flush();
  const std::string said = ::testing::internal::GetCapturedStdout();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  std::filesystem::remove(path);
  const size_t first = said.find(path);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  EXPECT_EQ(said.find("training continues"), said.rfind("training continues")) << said;
}

}  // namespace
}  // namespace titan
