#include "titan/report/run_record.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace titan {
namespace {

namespace fs = std::filesystem;

/// A run whose paths are relative to a current folder of its own.
class Recorded : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }

  static RecordTargets targets() {
    return {
        .metrics = "run/metrics.jsonl", .tensorboard = {}, .prometheus = {}, .run = "run", .report = true, .facts = {}};
  }

  const fs::path before_ = fs::current_path();
  const fs::path folder_ = fs::temp_directory_path() / ("titan-record-" + std::to_string(::getpid()));
  const Log log_;
};

TEST_F(Recorded, AllFilesOfARemovedFolderComeBackWithItsNextLine) {
  RunRecord record(targets(), 1, log_);
  const StepReport step;
  record.add(step);
  for (const bool validates : {false, true}) {
    fs::remove_all("run");
    validates ? record.add(ValidationReport()) : record.add(step);
    for (const char* file : {"metrics.jsonl", "run.json", "report.html"}) {
      EXPECT_TRUE(fs::exists(fs::path("run") / file)) << file;
    }
  }
}

TEST_F(Recorded, AFolderThatIsGoneWhenTheRunBreaksOffCostsOneWarningAndHidesNoError) {
  ::testing::internal::CaptureStdout();
  try {
    const RunRecord record(targets(), 1, log_);
    fs::remove_all(folder_);
    throw 7;
  } catch (const int value) {
    EXPECT_EQ(value, 7);
  }
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("metrics.report: "), std::string::npos) << said;
  EXPECT_EQ(said.find("training continues"), said.rfind("training continues")) << said;
}

}  // namespace
}  // namespace titan
