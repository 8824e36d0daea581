#include "titan/base/command_queue.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "titan/base/filesystem.h"
#include "titan/base/stop_signals.h"

namespace titan {
namespace {

using Ended = std::vector<std::pair<std::string, int>>;

constexpr std::chrono::minutes kLong{1};  // of what ends at once

TEST(CommandQueue, CommandsRunInOrderAndTheirExitCodesAreTold) {
  Ended ended;
  CommandQueue queue([&](const std::string& command, int code) { ended.emplace_back(command, code); });
  queue.submit("exit 7");
  queue.submit("true");
  queue.submit("kill -KILL $$");
  EXPECT_TRUE(queue.finish_within(kLong));
  EXPECT_EQ(ended, (Ended{{"exit 7", 7}, {"true", 0}, {"kill -KILL $$", 128 + SIGKILL}}));
}

TEST(CommandQueue, TheShellTakesAValueAsItIsWhateverItHolds) {
  const std::string said_file = testing::TempDir() + fmt::format("titan-command-{}", ::getpid());
  for (const std::string value : {"/plain/step-10", "with space", "it's", "a\"b`c$HOME\\d;e*", "-"}) {
    for (const char* written : {"{dir}", "\"{dir}\"", "'{dir}'", "\"x\"{dir}", "'x'\\'{dir}"}) {
      const std::string command = command_with(std::string("printf %s ") + written + " > " + said_file, "{dir}", value);
      CommandQueue queue([&](const std::string&, int code) { EXPECT_EQ(code, 0) << command; });
      queue.submit(command);
      EXPECT_TRUE(queue.finish_within(kLong));
      const std::string said = read_file(said_file);
      EXPECT_TRUE(said.ends_with(value) && said.size() <= value.size() + 2) << command << "\n" << said;
    }
  }
  std::filesystem::remove(said_file);
}

TEST(CommandQueue, NobodyWaitsForACommandThatRunsLongUnlessAsked) {
  const std::string pipe = ::testing::TempDir() + fmt::format("titan-queue-{}", ::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Ended ended;
  CommandQueue queue([&](const std::string& command, int code) { ended.emplace_back(command, code); });
  queue.submit("cat < " + pipe, "the first");  // until somebody opens the other end and closes it
  queue.submit("true", "the second");
  EXPECT_TRUE(ended.empty());
  EXPECT_FALSE(queue.poll());
  EXPECT_FALSE(queue.finish_within(std::chrono::milliseconds(1)));
  EXPECT_EQ(queue.waiting(), (std::vector<std::string>{"the first", "the second"}));
  std::ofstream(pipe).close();
  EXPECT_TRUE(queue.finish_within(kLong));
  EXPECT_EQ(ended.size(), 2u);
  EXPECT_TRUE(queue.waiting().empty());
  EXPECT_TRUE(queue.finish_within(std::chrono::milliseconds(0)));
  ::unlink(pipe.c_str());
}

TEST(CommandQueue, ACommandCanBeStoppedBySignalsThatAreBlockedHere) {
  const StopSignals stop;
  Ended ended;
  CommandQueue queue([&](const std::string& command, int code) { ended.emplace_back(command, code); });
  queue.submit("kill -TERM $$; sleep 60");
  EXPECT_TRUE(queue.finish_within(kLong));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].second, 128 + SIGTERM);
}

}  // namespace
}  // namespace titan
