// Nothing is read: a line never waits for long, what is left out is counted, and lines stay whole.
#include "titan/base/console_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"

namespace titan {
namespace {

/// Standard output or standard error as a pipe whose other end is this test's.
class Redirected {
 public:
  explicit Redirected(int descriptor) : descriptor_(descriptor), before_(::dup(descriptor)) {
    std::fflush(nullptr);  // what the test's framework has written
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    ::dup2(ends_[1], descriptor);
    ::close(ends_[1]);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Redirected() {
    std::fflush(nullptr);
    ::dup2(before_, descriptor_);
    ::close(before_);
    stop_reading();
  }
  /// All that is in the pipe.
  std::string read() const {
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t got; (got = ::read(ends_[0], part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<size_t>(got));
    }
    return text;
  }
  void stop_reading() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }

 private:
  int descriptor_;
  int before_;
  std::array<int, 2> ends_{-1, -1};
};

std::string numbered(int number) { return fmt::format("{:06} {}\n", number, std::string(993, 'x')); }

// Expectations come after the pipe is gone: what a failed one prints would wait in it.

TEST(ConsoleWriter, LeavesLinesOutAndSaysHowManyOnceThereIsAReaderAgain) {
  int written = 0;
  int64_t left_out = 0;
  std::string text, problem, later_problem;
  std::vector<bool> answers;
  {
    const Redirected output(STDOUT_FILENO);
    ConsoleWriter writer(STDOUT_FILENO);
    while (writer.write(numbered(written))) ++written;
    problem = writer.problem();
    answers = {writer.is_broken(), writer.has_room()};
    for (int i = 0; i < 1000; ++i) answers.push_back(writer.write(numbered(0)));  // a second each would take minutes
    left_out = writer.left_out();
    answers.push_back(!writer.take_left_out());
    answers.push_back(writer.take_left_out());
    text = output.read();
    answers.push_back(!writer.write("at last\n"));
    later_problem = writer.problem();
    text += output.read();
  }
  EXPECT_GE(written, 4) << "a pipe holds a page and more";
  EXPECT_EQ(problem, "its reader stopped reading");
  EXPECT_EQ(left_out, 1001);
  EXPECT_EQ(answers, std::vector<bool>(answers.size(), false));
  EXPECT_EQ(later_problem, "");
  std::string expected;
  for (int i = 0; i < written; ++i) expected += numbered(i);
  EXPECT_EQ(text, expected + "titan_train: lines left out here, because the reader had stopped: 1001\nat last\n");
}

TEST(ConsoleWriter, KeepsALineWholeOfWhichHalfFits) {
  const std::string longest = std::string(200'000, 'a') + "\n";
  bool first = false, second = true;
  std::string text;
  {
    const Redirected output(STDOUT_FILENO);
    ConsoleWriter writer(STDOUT_FILENO);
    first = writer.write(longest);
    second = writer.write("left out\n");  // behind the end of the long one
    while (!writer.write("next\n")) text += output.read();
    text += output.read();
  }
  EXPECT_TRUE(first) << "its end waits for room";
  EXPECT_FALSE(second);
  EXPECT_TRUE(text.starts_with(longest + "titan_train: ")) << text.size();
  EXPECT_TRUE(text.ends_with("\nnext\n"));
}

TEST(ConsoleWriter, NoticesThatTheReaderIsGone) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Redirected output(STDOUT_FILENO);
  ConsoleWriter writer(STDOUT_FILENO);
  EXPECT_TRUE(writer.write("read\n"));
  output.stop_reading();
  EXPECT_FALSE(writer.write("not read\n"));
  EXPECT_TRUE(writer.is_broken());
  EXPECT_EQ(writer.problem(), "Broken pipe");
  EXPECT_EQ(writer.write_some("nor this\n"), 9u) << "nothing to wait for";
  ::signal(SIGPIPE, before);
}

TEST(ConsoleWriter, WritesLinesOfStandardErrorWhole) {
  const Redirected errors(STDERR_FILENO);
  {
    const ErrorStream stream;
    std::cerr << "one " << 2;
    EXPECT_EQ(errors.read(), "");
    std::cerr << " three\n";
    EXPECT_EQ(errors.read(), "one 2 three\n");
    std::cerr << "and a question? " << std::flush;
    EXPECT_EQ(errors.read(), "and a question? ");
    std::cerr << "end";
  }
  EXPECT_EQ(errors.read(), "end");
}

TEST(LogWithoutAReader, ContinuesInItsFileAndCountsTheLines) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "titan-unread.log";
  std::filesystem::remove(file);
  std::string problem, shown;
  int64_t left_out = 0;
  testing::internal::CaptureStderr();
  {
    const Redirected output(STDOUT_FILENO);
    const Log log({.file_instead = file});
    const int64_t before = standard_output().left_out();
    while (standard_output().left_out() == before) log.info(std::string(1000, 'x'));
    log.info("nobody sees this" + std::string(1000, 'x'));  // a short line might fit
    problem = log.console_problem();
    left_out = standard_output().left_out();
    output.read();
    log.info("somebody sees this");
    shown = output.read();
  }
  EXPECT_EQ(
      problem,
      fmt::format("standard output could not be written (its reader stopped reading); {} lines of the log are in {}",
                  left_out, file.string()));
  EXPECT_NE(shown.find("lines left out here, because the reader had stopped: 2\n"), std::string::npos) << shown;
  EXPECT_NE(read_file(file).find("INFO - nobody sees this"), std::string::npos);
  EXPECT_EQ(read_file(file).find("somebody"), std::string::npos);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            fmt::format(
                "warning: standard output could not be written (its reader stopped reading); the log continues in {}\n",
                file.string()));
}

}  // namespace
}  // namespace titan
