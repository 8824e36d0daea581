#include "titan/tools/netcheck.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace titan {
namespace {

TEST(PairRounds, EachMeetsEachOnceAndNobodyTwoAtATime) {
  for (const int64_t count : {0, 1, 2, 3, 4, 7, 8, 33}) {
    std::set<std::pair<int64_t, int64_t>> met;
    for (const auto& round : pair_rounds(count)) {
      std::set<int64_t> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << count;
        EXPECT_TRUE(met.emplace(a, b).second) << count;
      }
    }
    EXPECT_EQ(std::ssize(met), count * (count - 1) / 2) << count;
    const int64_t rounds = count < 2 ? 0 : count - 1 + count % 2;
    EXPECT_EQ(std::ssize(pair_rounds(count)), rounds) << "with as many pairs at a time as there can be";
  }
}

/// All pairs of `hosts` hosts of two ranks: within a host at 10 GB/s, between the first ranks of hosts at 1 GB/s.
NetcheckResult even(int64_t hosts) {
  NetcheckResult result;
  for (int64_t host = 0; host < hosts; ++host) {
    result.hosts.insert(result.hosts.end(), 2, "node" + std::to_string(host));
    result.pairs.push_back({2 * host, 2 * host + 1, true, 10e9});
    for (int64_t other = 0; other < host; ++other) result.pairs.push_back({2 * other, 2 * host, false, 1e9});
    result.collectives.push_back({"tp", {2 * host, 2 * host + 1}, "all-reduce", 1 << 20, 1e-3, 5e9});
  }
  return result;
}

TEST(NetcheckProblems, EqualsHaveNone) { EXPECT_TRUE(netcheck_findings(even(4), {}).slow.empty()); }

TEST(NetcheckProblems, ASlowPairOfHostsIsNamedWithItsHostsAndNobodyElseIs) {
  NetcheckResult result = even(4);
  for (MeasuredPair& pair : result.pairs) {
    if (pair.first == 2 && pair.second == 6) pair.rate = 0.3e9;
  }
  const std::vector<std::string> problems = netcheck_findings(result, {}).slow;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0],
            "hosts node1 and node3 (ranks 2 and 6): 0.3 GB/s, where the median of pairs of hosts is 1 GB/s");
}

TEST(NetcheckProblems, AHostThatIsSlowWithAllOthersIsNamedOfThreeHostsToo) {
  for (const int64_t hosts : {3, 4, 7}) {
    NetcheckResult result = even(hosts);
    for (MeasuredPair& pair : result.pairs) {
      if (!pair.same_host && (pair.first == 2 || pair.second == 2)) pair.rate = 0.3e9;
    }
    const NetcheckFindings findings = netcheck_findings(result, {});
    EXPECT_EQ(std::ssize(findings.slow), hosts - 1);
    const std::string sentence = "all " + std::to_string(hosts - 1) + " slow pairs of hosts have host node1 in common";
    EXPECT_EQ(findings.in_common, std::vector<std::string>{sentence});
  }
}

TEST(NetcheckProblems, ManyHostsAreComparedAtOnce) {
  constexpr int64_t kHosts = 600;  // 179,700 pairs: each compared with a median of its own would take minutes
  NetcheckResult result = even(kHosts);
  for (const int64_t bytes : {int64_t{1} << 16, int64_t{1} << 21}) {
    for (int64_t rank = 0; rank < 8000; ++rank) {
      result.collectives.push_back({"tp", {2 * rank, 2 * rank + 1}, "all-gather", bytes, 1e-3, 5e9});
    }
  }
  mark_largest(result.collectives);
  EXPECT_TRUE(netcheck_findings(result, {.host_rate = 6e9, .network_rate = 1e9}).slow.empty());
  EXPECT_EQ(collectives_verdict(result, {.host_rate = 10e9}),
            "the slowest of 8600 collectives has 50 % of what the hardware promises");
}

TEST(NetcheckProblems, ASlowPairOfRanksIsComparedWithPairsOnOneHost) {
  NetcheckResult result = even(4);
  result.pairs[0].rate = 6e9;  // 1.67 times slower than its equals, six times faster than pairs of hosts
  const std::vector<std::string> problems = netcheck_findings(result, {}).slow;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(problems[0].starts_with("ranks 0 and 1 on node0: 6 GB/s")) << problems[0];
  EXPECT_TRUE(netcheck_findings(result, {.slow = 2}).slow.empty());
}

TEST(NetcheckProblems, ASlowCommunicatorOfSeveralIsNamedWithItsRanks) {
  NetcheckResult result = even(4);
  result.collectives[2].rate = 1e9;
  const std::vector<std::string> problems = netcheck_findings(result, {}).slow;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0],
            "all-reduce of tp over ranks 4 and 5, 1.00 MiB: 1 GB/s, where the median of its equals is 5 GB/s");
}

TEST(NetcheckProblems, FewerThanThreeEqualsAreComparedWithTheHardwareAlone) {
  NetcheckResult result = even(2);
  result.pairs[0].rate = 1e9;
  EXPECT_TRUE(netcheck_findings(result, {}).slow.empty());
  EXPECT_FALSE(netcheck_compares(result, {}));
  EXPECT_TRUE(netcheck_compares(even(3), {}));
  EXPECT_TRUE(netcheck_compares(result, {.host_rate = 10e9}));
  const std::vector<std::string> problems = netcheck_findings(result, {.host_rate = 10e9, .network_rate = 1.5e9}).slow;
  ASSERT_EQ(problems.size(), 1u) << "half of the promise is enough";
  EXPECT_EQ(problems[0], "ranks 0 and 1 on node0: 1 GB/s, where the hardware promises 10 GB/s");
}

/// Two hosts of four ranks, and collectives over all of them and over those of host 0.
NetcheckResult collectives() {
  NetcheckResult result;
  result.hosts = {"a", "a", "a", "a", "b", "b", "b", "b"};
  for (const int64_t bytes : {int64_t{1} << 16, int64_t{1} << 26}) {
    const double rate = bytes == 1 << 16 ? 1e6 : 60e9;  // latency, and the link
    result.collectives.push_back({"fsdp_gather", {0, 1, 2, 3, 4, 5, 6, 7}, "all-gather", bytes, 1e-3, rate, 2});
    result.collectives.push_back({"fsdp_gather", {0, 1, 2, 3, 4, 5, 6, 7}, "send to the next", bytes, 1e-3, rate, 2});
    result.collectives.push_back({"tp", {0, 1, 2, 3}, "all-reduce", bytes, 1e-3, rate, 1});
  }
  mark_largest(result.collectives);
  return result;
}

TEST(NetcheckCollectives, TheLargestOnesArePromisedALinkOrTheCardsThatTheirRingUses) {
  const NetcheckResult result = collectives();
  const NetcheckOptions options{.host_rate = 100e9, .network_rate = 20e9};
  std::vector<std::optional<double>> promised;
  for (const MeasuredCollective& one : result.collectives) promised.push_back(promised_rate(one, options));
  const std::optional<double> none;
  EXPECT_EQ(promised, (std::vector<std::optional<double>>{none, none, none, 80e9, 20e9, 100e9}));
  EXPECT_EQ(promised_rate(result.collectives[3], {.host_rate = 50e9, .network_rate = 20e9}), 50e9);
  EXPECT_EQ(promised_rate(result.collectives[3], {.host_rate = 50e9}), none);
  EXPECT_EQ(promised_rate({"tp", {0}, "all-reduce", 1 << 26, 1e-3, 0, 1}, options), none);
}

TEST(NetcheckCollectives, HalfOfThePromiseIsEnoughAndLessIsNamed) {
  NetcheckResult result = collectives();
  const NetcheckOptions options{.host_rate = 100e9, .network_rate = 20e9};
  EXPECT_TRUE(netcheck_findings(result, options).slow.empty()) << "small tensors are not judged";
  EXPECT_EQ(collectives_verdict(result, options),
            "the slowest of 3 collectives has 60 % of what the hardware promises");
  EXPECT_EQ(collectives_verdict(result, {}), "");
  result.collectives[3].rate = 39e9;
  const std::vector<std::string> problems = netcheck_findings(result, options).slow;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0],
            "all-gather of fsdp_gather over ranks 0 to 7, 64.00 MiB: 39 GB/s, where the hardware "
            "promises 80 GB/s");
  EXPECT_EQ(collectives_verdict(result, options),
            "the slowest of 3 collectives has 49 % of what the hardware promises");
}

TEST(NetcheckCollectives, TheTableAndTheJsonShowThePromiseOfTheLargest) {
  const NetcheckOptions options{.host_rate = 100e9, .network_rate = 20e9};
  const std::vector<std::string> table = netcheck_table(collectives(), options);
  EXPECT_TRUE(table[0].ends_with("  promised")) << table[0];
  EXPECT_EQ(std::count_if(table.begin(), table.end(), [](const auto& line) { return line.ends_with("        80"); }),
            1);
  EXPECT_FALSE(netcheck_table(collectives(), {})[0].ends_with("promised"));
  const nlohmann::ordered_json json = netcheck_json(collectives(), options, {});
  EXPECT_FALSE(json["collectives"][0].contains("promised_gb_per_second"));
  EXPECT_EQ(json["collectives"][3]["promised_gb_per_second"], 80.0);
  EXPECT_TRUE(json["compared"]);
}

TEST(NetcheckReport, TheTableHasTheSlowestOfEachNameAndTheJsonHasAll) {
  NetcheckResult result = even(2);
  result.collectives[1].rate = 4e9;
  const std::vector<std::string> table = netcheck_table(result, {});
  EXPECT_EQ(
      std::count_if(table.begin(), table.end(), [](const auto& line) { return line.find("all-reduce") != line.npos; }),
      1);
  const nlohmann::ordered_json json = netcheck_json(result, {}, {.slow = {"a sentence"}, .in_common = {"a host"}});
  EXPECT_EQ(json["collectives"].size(), 2u);
  EXPECT_EQ(json["pairs"].size(), 3u);
  EXPECT_FALSE(json["passed"]);
}

}  // namespace
}  // namespace titan
