// Mutated messages of the ranks' protocol, each against a rank 0 or another rank in a process of its own: it ends by
// itself, with an exit code of the table that is neither 0 nor 70. TITAN_TEST_FULL=1 sends 10,000.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "src/distributed/channel.h"
#include "src/distributed/handshake.h"
#include "src/distributed/rank_hub.h"
#include "src/distributed/rank_link.h"
#include "src/distributed/rank_messages.h"

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

std::string mutated(std::string line, std::mt19937& random) {
  static const std::vector<std::string> words{"-1",
                                              "0",
                                              "1",
                                              "255",
                                              "9223372036854775807",
                                              "18446744073709551616",
                                              "1e300",
                                              "null",
                                              "\"\"",
                                              "[]",
                                              "{}",
                                              "[[[[[[[[",
                                              "true",
                                              "\"x\"",
                                              "\\u0000",
                                              "\xff",
                                              ",",
                                              "}"};
  const auto below = [&](size_t end) { return random() % std::max<size_t>(1, end); };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t at = below(line.size()), length = below(8);
    switch (below(6)) {
      case 0:
        line.resize(at);
        break;
      case 1:
        line.insert(at, words[below(words.size())]);
        break;
      case 2:
        line.replace(at, length, words[below(words.size())]);
        break;
      case 3:
        line.insert(at, line.substr(below(line.size()), below(40)));
        break;
      case 4:
        line.insert(at, 1 + below(100000), "[{\""[below(3)]);
        break;
      default:
        line.insert(at, 1, static_cast<char>(below(256)));
    }
  }
  return line;
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

/// What a rank ends with that no message has ended within kLifeTime.
constexpr int kLives = 99;
constexpr std::chrono::seconds kLifeTime{4};

/// As one rank of two whose other rank says `lines`: ends the process with what the rank ends with.
[[noreturn]] void be_rank(int64_t rank, Descriptor listener, const std::vector<std::string>& lines) {
  ::alarm(kLimitSeconds);
  const uint16_t port = port_of(listener);
  const Deadline limit = std::chrono::steady_clock::now() + kPatience;
  const auto waits = std::make_shared<PeerWaits>();
  const auto tell = [](const std::string&, bool) {};
  const auto peer = std::async(std::launch::async, [&] {
    Channel channel = rank == 0 ? rank_one(port) : rank_zero(listener);
    for (const std::string& line : lines) channel.send_line(line);
  });
  int code = kLives;
  try {
    if (rank == 0) {
      RankHub hub(std::move(listener), kKey, facts(0), tell, waits, nullptr);
      hub.gather(limit, "");
      hub.welcome();
      std::this_thread::sleep_for(kLifeTime);
    } else {
      RankLink link(facts(1), tell, waits, nullptr);
      link.call("127.0.0.1", {port}, kKey, limit);
      link.join(limit);
      std::this_thread::sleep_for(kLifeTime);
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
  std::map<pid_t, std::string> running;
  std::map<int, int> ends;
  for (int i = 0; i < count || !running.empty(); ++i) {
    if (i < count) {
      const size_t which = static_cast<size_t>(i) % seeds.size();
      const std::string line = mutated(seeds[which], random);
      std::vector<std::string> lines{line};
      if (which > 0) lines.insert(lines.begin(), seeds[0]);
      Descriptor listener = listen_on(/*loopback_only=*/true, 0);
      ASSERT_TRUE(listener);
      const pid_t child = ::fork();
      if (child == 0) be_rank(GetParam(), std::move(listener), lines);
      ASSERT_GT(child, 0);
      running[child] = line;
      if (std::ssize(running) < kAtATime) continue;
    }
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    ASSERT_GT(child, 0);
    const std::string said = running[child].substr(0, 300);
    running.erase(child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " after " << said;
    const int code = WEXITSTATUS(status);
    const bool is_failure = is_failure_code(code) && code != static_cast<int>(ExitCode::bug);
    EXPECT_TRUE(is_failure || code == kLives) << code << " after " << said;
    ++ends[code];
  }
  EXPECT_GT(ends[static_cast<int>(ExitCode::peer_failure)], count / 4);
}

INSTANTIATE_TEST_SUITE_P(Rank, Garbage, testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? std::string("Zero") : std::string("One"); });

}  // namespace
}  // namespace titan
