#include "titan/base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "titan/base/filesystem.h"
#include "titan/base/text.h"

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

TEST_F(LogFile, EscapesControlCharactersOfMessagesAndKeepsWhatTheProgramPainted) {
  testing::internal::CaptureStderr();
  {
    const Log log({.console = false, .file = file_, .error_prefix = ""});
    log.warning("host a\x1b]0;b\a says:\n[titan] done");
    log.painted("\x1b[31mstep");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: host a\\x1b]0;b\\x07 says:\n  [titan] done\n");
  const std::string text = read_file(file_);
  EXPECT_NE(text.find("WARNING - host a\\x1b]0;b\\x07 says:\n  [titan] done\n"), std::string::npos) << text;
  EXPECT_NE(text.find("INFO - \x1b[31mstep\n"), std::string::npos) << text;
}

TEST_F(LogFile, ThatCannotBeWrittenCostsLinesAndOneWarningAndNotTheRun) {
  const std::string below_a_device = "/dev/null/logs/rank.log";
  for (const auto& [path, reason] :
       {std::pair{std::string("/dev/full"),
                  "cannot open /dev/full: it is a device, and the program writes only regular files there; remove it"},
        std::pair{below_a_device, "Not a directory"}}) {
    testing::internal::CaptureStderr();
    {
      const Log log({.console = false, .file = path, .error_prefix = "[rank 3] "});
      for (const char* line : {"lost", "lost too"}) log.info(line);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              fmt::format("[rank 3] warning: this rank's log is not being written to {}: {}; the run continues without "
                          "it\n",
                          path, reason));
  }
}

TEST_F(LogFile, EndsWithTheLinesOfTheThreadThatEndsTheProcess) {
  const Log log({.console = false, .file = file_});
  std::thread([&] {
    log.info("before");
    log.silence_other_threads();
    log.info("rank 1 failed");
  }).join();
  log.info("step 3");
  log.error("a consequence");
  EXPECT_TRUE(read_file(file_).ends_with(" - INFO - rank 1 failed\n")) << read_file(file_);
}

std::string console_of(const LogTargets& targets, const std::function<void(const Log&)>& act) {
  testing::internal::CaptureStdout();
  { act(Log(targets)); }
  return testing::internal::GetCapturedStdout();
}

/// What a terminal shows in the end: a carriage return goes back to the line's beginning, and what follows is written
/// over what stands there.
std::string as_shown(const std::string& text) {
  std::string all;
  for (const std::string& line : split(text, '\n')) {
    std::string shown;
    for (const std::string& part : split(line, '\r')) shown.replace(0, std::min(part.size(), shown.size()), part);
    all += shown.substr(0, shown.find_last_not_of(' ') + 1) + "\n";
  }
  all.pop_back();
  return all;
}

TEST(LogStatus, StandsBelowTheNewestLineAndIsRewrittenInPlace) {
  const std::string text = console_of({.terminal = true}, [](const Log& log) {
    EXPECT_TRUE(log.shows_status());
    log.info("first");
    log.status("step 1");
    log.info("second");
    log.status("step 2");
    log.status({});
    log.info("third");
    log.status("step 3");
  });
  const std::string wiped = "\r" + std::string(8, ' ') + "\r";  // with room for the ^C that a terminal shows
  EXPECT_NE(text.find("step 1" + wiped + "[titan] "), std::string::npos) << text;
  EXPECT_NE(text.find(" second\nstep 1" + wiped + "step 2" + wiped + "[titan] "), std::string::npos) << text;
  const std::string shown = as_shown(text);
  EXPECT_EQ(shown.find("step"), std::string::npos) << "the end of the log leaves none behind: " << shown;
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 3) << shown;
}

TEST(LogStatus, IsNotShownWhereThereIsNoTerminalOrNothingIsWanted) {
  for (const LogTargets& targets : {LogTargets{}, LogTargets{.terminal = true, .quiet = true}}) {
    const std::string text = console_of(targets, [](const Log& log) {
      EXPECT_FALSE(log.shows_status());
      log.status("step 1");
    });
    EXPECT_EQ(text, "");
  }
}

TEST(LogStatus, ColoursOfATerminalSurroundWarningsAlone) {
  const std::string text = console_of({.colour = true, .terminal = true}, [](const Log& log) {
    log.info("plain");
    log.warning("hot");
  });
  EXPECT_EQ(text.find("\x1b[33m"), text.rfind("\x1b[33m")) << text;
  EXPECT_NE(text.find("WARNING - hot\x1b[m\n"), std::string::npos) << text;
}

TEST(QuietLog, LetsWarningsAndErrorsThrough) {
  const std::string text = console_of({.quiet = true}, [](const Log& log) {
    log.info("step");
    log.warning("odd");
    log.error("broken");
  });
  EXPECT_EQ(text.find("step"), std::string::npos) << text;
  EXPECT_NE(text.find("WARNING - odd"), std::string::npos) << text;
  EXPECT_NE(text.find("ERROR - broken"), std::string::npos) << text;
}

}  // namespace
}  // namespace titan
