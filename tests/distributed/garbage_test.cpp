// Mutated messages of the ranks' protocol, each against a rank 0 or another rank in a process of its own. One that
// cannot be read ends it, with an exit code of the table that is neither 0 nor 70; one that can may also leave it to
// the limit of its own leave(). TITAN_TEST_FULL=1 sends 10,000.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <map>
#include <random>

#include "src/distributed/channel.h"
#include "src/distributed/coordinator.h"
#include "src/distributed/coordinator_client.h"
#include "src/distributed/rank_messages.h"
#include "support/mutated_line.h"
#include "titan/base/text.h"
#include "titan/distributed/rendezvous.h"

namespace titan {
namespace {

constexpr unsigned kLimitSeconds = 30;
constexpr int kAtATime = 48;  // most of their time they wait
constexpr std::chrono::seconds kPatience{20};
const std::string kKey = "\ntest";

RankFacts facts(int64_t rank) {
  RankFacts facts;
  facts.rank = rank;
  facts.size = 2;
  facts.host = "a";
  facts.device = "cpu";
  facts.cores = {0, 1};
  facts.config = R"({"training":{"steps":1}})";
  return facts;
}

StoreCall store_call() {
  return {
      .kind = StoreCall::Kind::set, .keys = {"key"}, .values = {"value"}, .number = 1, .within = kPatience, .id = 7};
}

/// What a rank says to rank 0 once it is believed, report first; and what rank 0 says, welcome first.
std::vector<std::string> lines_of_rank_one() {
  return {facts(1).to_json(), failed_line(65, "no data"), waits_line({0}), asks_line(std::chrono::milliseconds(100)),
          leaving_line(),     store_line(store_call())};
}
std::vector<std::string> lines_of_rank_zero() {
  return {welcome_line({1, "rank 0", {1, {0, 1}}}),
          refused_line({64, "no GPU"}),
          ended_line({0, 0, "rank 0 failed"}),
          heard_line(),
          asked_line(),
          farewell_line(),
          stored_line({"value", 1, 7})};
}

/// A rank that is the test's: its report or welcome is whole where a later line is the mutated one.
Channel rank_one(uint16_t port) {
  std::string reason;
  std::optional<Channel> channel;
  while (!channel) channel = Channel::connect("127.0.0.1", port, kPatience, reason);
  const Deadline limit = std::chrono::steady_clock::now() + kPatience;
  const Handshake handshake{kKey, port, parse_message(*channel->wait_line(limit)).greeting.value(), "1", 1};
  channel->send_line(hello_line({1, "1", handshake.caller_proof()}));
  channel->wait_line(limit);
  return std::move(*channel);
}

Channel rank_zero(const Descriptor& listener) {
  std::optional<Channel> channel;
  while (!channel) channel = Channel::accept(listener);
  const Deadline limit = std::chrono::steady_clock::now() + kPatience;
  channel->send_line(greeting_line("0"));
  const Hello hello = parse_message(*channel->wait_line(limit)).hello.value();
  const Handshake handshake{kKey, port_of(listener), "0", hello.nonce, 1};
  channel->send_line(proof_line(handshake.zero_proof()));
  channel->set_longest_line(kJoiningLine);
  channel->wait_line(limit);  // its report
  return std::move(*channel);
}

/// The limit of the ranks' leave(), which holds where no message ends them, and what they end with then.
constexpr std::chrono::seconds kLeaveLimit{4};
constexpr int kLeft = 99;

/// Whether `text`, sent as a line, may leave a rank that has heard `before` lines alive: all of it can be read.
bool is_readable(const std::string& text, int64_t rank, size_t before) {
  if (rank == 0 && before == 0) return RankFacts::from_json(text).has_value();
  const std::vector<std::string> lines = split(text, '\n');
  return std::all_of(lines.begin(), lines.end(),
                     [](const std::string& line) { return parse_message(line).is_understood; });
}

/// As one rank of two whose other rank says `lines` and stays: ends the process with what the rank ends with.
[[noreturn]] void be_rank(int64_t rank, Descriptor listener, const std::vector<std::string>& lines) {
  ::alarm(kLimitSeconds);
  const uint16_t port = port_of(listener);
  const Deadline limit = std::chrono::steady_clock::now() + kPatience;
  const auto waits = std::make_shared<WaitForGraph>();
  const auto tell = [](const std::string&, bool) {};
  const auto peer = std::async(std::launch::async, [&] {
    Channel channel = rank == 0 ? rank_one(port) : rank_zero(listener);
    for (const std::string& line : lines) channel.send_line(line);
    return channel;
  });
  int code = kLeft;
  try {
    if (rank == 0) {
      GatheredRanks ranks = gather_ranks(std::move(listener), facts(0), limit, {kKey, "", false});
      Coordinator(std::move(ranks), tell, waits, nullptr).leave(kLeaveLimit);
    } else {
      JoinedRun run = join_run({port}, facts(1), limit, {kKey, "127.0.0.1", false});
      CoordinatorClient(1, std::move(run), tell, waits, nullptr).leave(kLeaveLimit);
    }
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
  } catch (...) {
    code = static_cast<int>(ExitCode::bug);
  }
  ::_exit(code);
}

class Garbage : public testing::TestWithParam<int64_t> {};

TEST_P(Garbage, InAnyMessageEndsARankWithACodeOfTheTable) {
  const std::vector<std::string> seeds = GetParam() == 0 ? lines_of_rank_one() : lines_of_rank_zero();
  const int count = std::getenv("TITAN_TEST_FULL") ? 5000 : 120;
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::map<pid_t, std::vector<std::string>> running;
  std::map<int, int> ends;
  for (int i = 0; i < count || !running.empty(); ++i) {
    if (i < count) {
      const size_t which = static_cast<size_t>(i) % seeds.size();
      std::vector<std::string> lines(1);
      while (lines[0].empty()) lines[0] = mutated(seeds[which], random);
      if (which > 0) lines.insert(lines.begin(), seeds[0]);
      Descriptor listener = listen_on("127.0.0.1", 0);
      ASSERT_TRUE(listener);
      const pid_t child = ::fork();
      if (child == 0) be_rank(GetParam(), std::move(listener), lines);
      ASSERT_GT(child, 0);
      running[child] = std::move(lines);
      if (std::ssize(running) < kAtATime) continue;
    }
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    ASSERT_GT(child, 0);
    const std::vector<std::string> lines = running.extract(child).mapped();
    const std::string said = lines.back().substr(0, 300);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " after " << said;
    const int code = WEXITSTATUS(status);
    const bool is_failure = is_failure_code(code) && code != static_cast<int>(ExitCode::bug);
    const bool may_leave = is_readable(lines.back(), GetParam(), lines.size() - 1);
    EXPECT_TRUE(is_failure || (code == kLeft && may_leave)) << code << " after " << said;
    ++ends[code];
  }
  EXPECT_GT(ends[static_cast<int>(ExitCode::peer_failure)], count / 4);
}

INSTANTIATE_TEST_SUITE_P(Rank, Garbage, testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? std::string("Zero") : std::string("One"); });

}  // namespace
}  // namespace titan
