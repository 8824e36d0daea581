#include "titan/distributed/rank_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "titan/base/error.h"

namespace titan {
namespace {

RankFacts facts(int64_t rank, int64_t size, const std::string& host = "a") {
  RankFacts facts;
  facts.rank = rank;
  facts.size = size;
  facts.host = host;
  facts.process = 100 + rank;
  facts.device = "cpu";
  facts.cores = {0, 1, 2, 3};
  facts.program = "p";
  facts.config = R"({"training":{"seq_len":64,"steps":3}})";
  return facts;
}

/// What `facts` are refused with after rank 0 of two.
std::string refused(const RankFacts& facts_of_one) {
  RankCheck rank_check(facts(0, 2));
  const std::optional<Refusal> refusal = rank_check.add(facts_of_one);
  EXPECT_FALSE(rank_check.is_complete());
  return refusal ? refusal->text : "not refused";
}

void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(RankCheck, IsCompleteWhenEveryRankCameInWhateverOrder) {
  RankCheck rank_check(facts(0, 4));
  for (const int64_t rank : {3, 1, 2}) {
    EXPECT_FALSE(rank_check.is_complete());
    EXPECT_FALSE(rank_check.add(facts(rank, 4)).has_value());
  }
  EXPECT_TRUE(rank_check.is_complete());
}

TEST(RankCheck, NamesTheRanksThatAreMissing) {
  RankCheck rank_check(facts(0, 8));
  EXPECT_EQ(rank_check.missing(), "ranks 1 to 7");
  for (const int64_t rank : {1, 2, 4}) rank_check.add(facts(rank, 8));
  EXPECT_EQ(rank_check.missing(), "ranks 3 and 5 to 7");
  for (const int64_t rank : {5, 6, 7}) rank_check.add(facts(rank, 8));
  EXPECT_EQ(rank_check.missing(), "rank 3");
}

TEST(RankCheck, NumbersReadAsASentence) {
  EXPECT_EQ(number_list({}), "");
  EXPECT_EQ(number_list({3}), "3");
  EXPECT_EQ(number_list({3, 4}), "3 and 4");
  EXPECT_EQ(number_list({3, 5, 7, 8, 9}), "3, 5 and 7 to 9");
}

TEST(RankCheck, AnotherWorldSizeIsRefusedWithBothRanks) {
  const std::string text = refused(facts(1, 3));
  expect_text(text, "rank 1 (a, process 101) was started as one of 3 ranks");
  expect_text(text, "rank 0 (a, process 100) as one of 2");
}

TEST(RankCheck, ARankThatIsThereTwiceIsRefusedWithBothProcesses) {
  RankFacts again = facts(0, 2, "b");
  again.process = 7;
  expect_text(refused(again), "rank 0 is there twice: a, process 100, and b, process 7");
}

TEST(RankCheck, TwoRanksOnOneGpuAreRefusedAndTwoHostsWithEqualOnesAreNot) {
  RankFacts zero = facts(0, 3);
  zero.device_uuid = "ab12";
  RankCheck rank_check(zero);
  RankFacts other_host = facts(1, 3, "b");
  other_host.device_uuid = "ab12";
  EXPECT_FALSE(rank_check.add(other_host).has_value());
  RankFacts same_host = facts(2, 3);
  same_host.device_uuid = "ab12";
  const std::optional<Refusal> refusal = rank_check.add(same_host);
  ASSERT_TRUE(refusal.has_value());
  expect_text(refusal->text, "rank 0 (a, process 100) and rank 2 (a, process 102) both use");
}

TEST(RankCheck, AnotherProgramIsRefused) {
  RankFacts other = facts(1, 2);
  other.program = "q";
  expect_text(refused(other), "runs another build");
}

TEST(RankCheck, AnotherConfigIsRefusedWithTheOptionsThatDiffer) {
  RankFacts other = facts(1, 2);
  other.config = R"({"training":{"seq_len":128,"steps":3},"comm":{"mode":"x"}})";
  const std::string text = refused(other);
  expect_text(text, "training.seq_len is 128 there and 64 on rank 0");
  expect_text(text, "comm is {\"mode\":\"x\"} there and not given on rank 0");
  EXPECT_EQ(text.find("steps"), std::string::npos);
}

TEST(RankCheck, ARankThatCannotTakePartEndsAllWithItsOwnExitCode) {
  RankCheck rank_check(facts(0, 2));
  RankFacts troubled = facts(1, 2);
  troubled.problem = "no GPU";
  troubled.problem_code = 64;
  const std::optional<Refusal> refusal = rank_check.add(troubled);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->code, 64);
  EXPECT_EQ(refusal->text, "rank 1 (a, process 101): no GPU");
}

/// A complete rendezvous check of ranks on these hosts, in order.
RankCheck on_hosts(const std::vector<std::string>& hosts, const std::function<void(RankFacts&)>& change = {}) {
  const auto size = static_cast<int64_t>(hosts.size());
  auto made = [&](int64_t rank) {
    RankFacts made = facts(rank, size, hosts[static_cast<size_t>(rank)]);
    if (change) change(made);
    return made;
  };
  RankCheck rank_check(made(0));
  for (int64_t rank = size - 1; rank > 0; --rank) EXPECT_FALSE(rank_check.add(made(rank)).has_value());
  return rank_check;
}

TEST(RankCheck, TheRanksOfAHostFindTheirPlacesFromWhereTheyRun) {
  RankCheck rank_check = on_hosts({"a", "b", "a", "b", "b"});
  ASSERT_FALSE(rank_check.settle().has_value());
  EXPECT_EQ(rank_check.place(2).host_ranks, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(rank_check.place(2).local_rank, 1);
  EXPECT_EQ(rank_check.place(4).host_ranks, (std::vector<int64_t>{1, 3, 4}));
  EXPECT_EQ(rank_check.place(4).local_rank, 2);
}

TEST(RankCheck, MachinesOfOneNameAreSeveralHosts) {
  RankCheck rank_check = on_hosts({"localhost", "localhost"}, [](RankFacts& own) {
    own.machine = own.rank == 0 ? "x" : "y";
    own.device_uuid = "ab12";
  });
  ASSERT_FALSE(rank_check.settle().has_value());
  EXPECT_EQ(rank_check.place(1).host_ranks, std::vector<int64_t>{1});
  EXPECT_EQ(rank_check.place(1).local_rank, 0);
  EXPECT_EQ(rank_check.core_share(1), 4);
}

TEST(RankCheck, ALaunchersPlacesAreKeptAndMayCountFewerRanksThanTheHostHas) {
  // Two launchers on one machine, each with two ranks.
  RankCheck rank_check = on_hosts({"a", "a", "a", "a"}, [](RankFacts& own) {
    own.local_rank = own.rank % 2;
    own.local_size = 2;
  });
  ASSERT_FALSE(rank_check.settle().has_value());
  EXPECT_EQ(rank_check.place(3).local_rank, 1);
  EXPECT_EQ(rank_check.place(3).host_ranks.size(), 4u);
}

TEST(RankCheck, AHostWithFewerRanksThanALauncherSaysIsRefused) {
  RankCheck rank_check = on_hosts({"a", "b"}, [](RankFacts& own) { own.local_size = 2; });
  const std::optional<Refusal> refusal = rank_check.settle();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->code, 69);
  expect_text(refusal->text, "rank 0 (a, process 100) has LOCAL_WORLD_SIZE=2");
  expect_text(refusal->text, "of its host a only rank 0 joined");
}

TEST(RankCheck, ARankThatSeesSeveralGpusGetsTheOneOfItsPlace) {
  auto two_gpus = [](RankFacts& own) { own.gpus = {"u0", "u1"}; };
  RankCheck rank_check = on_hosts({"a", "b", "a"}, two_gpus);
  ASSERT_FALSE(rank_check.settle().has_value());
  EXPECT_EQ(rank_check.facts(1)->device, "cuda:0");
  EXPECT_EQ(rank_check.facts(2)->device, "cuda:1");
  EXPECT_EQ(rank_check.facts(2)->device_uuid, "u1");
  RankCheck crowded = on_hosts({"a", "a", "a"}, two_gpus);
  const std::optional<Refusal> refusal = crowded.settle();
  ASSERT_TRUE(refusal.has_value());
  expect_text(refusal->text, "rank 2 (a, process 102) is number 2 on its host, counted from 0, and sees 2 GPUs");
}

TEST(RankCheck, AGpuThatOnePlaceAndOneLauncherGiveIsRefused) {
  RankCheck rank_check = on_hosts({"a", "a"}, [](RankFacts& own) {
    if (own.rank == 0) own.gpus = {"u0", "u1"};
    if (own.rank == 1) own.device_uuid = "u0";
  });
  const std::optional<Refusal> refusal = rank_check.settle();
  ASSERT_TRUE(refusal.has_value());
  expect_text(refusal->text, "rank 0 (a, process 100) and rank 1 (a, process 101) both use");
}

TEST(RankCheck, CoresAreSharedByTheRanksOfAHostThatHaveTheSame) {
  RankCheck rank_check(facts(0, 4));
  rank_check.add(facts(1, 4));
  RankFacts bound = facts(2, 4);
  bound.cores = {3};
  rank_check.add(bound);
  rank_check.add(facts(3, 4, "b"));
  EXPECT_EQ(rank_check.core_share(0), 2);
  EXPECT_EQ(rank_check.core_share(2), 1);
  EXPECT_EQ(rank_check.core_share(3), 4);
}

TEST(RankCheck, ACpuQuotaIsSharedByTheRanksOfItsControlGroup) {
  const auto in_group = [](int64_t rank, int64_t quota, const std::string& group, const std::string& host = "a") {
    RankFacts own = facts(rank, 5, host);
    own.cores = {0, 1, 2, 3, 4, 5, 6, 7};
    own.quota = quota;
    own.quota_group = group;
    return own;
  };
  RankCheck rank_check(in_group(0, 3, "g"));
  rank_check.add(in_group(1, 3, "g"));
  rank_check.add(in_group(2, 6, "h"));
  rank_check.add(in_group(3, 0, ""));
  rank_check.add(in_group(4, 3, "g", "b"));
  EXPECT_EQ(rank_check.core_share(0), 1);
  EXPECT_EQ(rank_check.core_share(2), 2) << "four ranks have these eight cores";
  EXPECT_EQ(rank_check.core_share(3), 2);
  EXPECT_EQ(rank_check.core_share(4), 3) << "another host";
}

TEST(RankCheck, ARankThatWasRemovedIsMissing) {
  RankCheck rank_check(facts(0, 3));
  for (const int64_t rank : {1, 2}) rank_check.add(facts(rank, 3));
  rank_check.remove(1);
  rank_check.remove(1);
  rank_check.remove(7);
  EXPECT_FALSE(rank_check.is_complete());
  EXPECT_EQ(rank_check.missing(), "rank 1");
  EXPECT_FALSE(rank_check.add(facts(1, 3)).has_value());
  EXPECT_TRUE(rank_check.is_complete());
}

TEST(RankCheck, TheTableHasALinePerRankAndSaysHowManyItLeavesOut) {
  RankCheck rank_check(facts(0, 3));
  rank_check.add(facts(1, 3));
  rank_check.add(facts(2, 3, "another-host"));
  const std::vector<std::string> all = rank_check.table();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0], "  rank  host          process  device   cores");
  EXPECT_EQ(all[1], "     0  a                 100  cpu      0-3 (shared: 2 for this rank)");
  EXPECT_EQ(all[3], "     2  another-host      102  cpu      0-3");
  const std::vector<std::string> some = rank_check.table(/*most=*/1);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[2], "  … and 2 more");
}

TEST(RankCheck, MoreThreadsThanCoresAreWarnedOfByRank) {
  RankFacts zero = facts(0, 2);
  zero.threads = 4;
  RankCheck rank_check(zero);
  rank_check.add(facts(1, 2, "b"));
  EXPECT_TRUE(rank_check.warnings().empty());
  RankCheck crowded(zero);
  crowded.add(facts(1, 2));
  ASSERT_EQ(crowded.warnings().size(), 1u);
  expect_text(crowded.warnings()[0], "rank 0: training.threads = 4 and 2 cores");
}

TEST(RankCheck, ALauncherThatBoundEachRankToOneCoreOfManyIsWarnedOf) {
  auto bound = [](int64_t rank, int core, int64_t host_cores) {
    RankFacts own = facts(rank, 2);
    own.cores = {core};
    own.host_cores = host_cores;
    return own;
  };
  auto warnings = [](const RankFacts& zero, const RankFacts& one) {
    RankCheck rank_check(zero);
    rank_check.add(one);
    return rank_check.warnings();
  };
  const std::vector<std::string> told = warnings(bound(0, 0, 8), bound(1, 1, 8));
  ASSERT_EQ(told.size(), 1u);
  expect_text(told[0], "ranks 0 and 1: bound to one core each, of 8 that a has");
  expect_text(told[0], "mpirun --bind-to none");
  EXPECT_TRUE(warnings(bound(0, 0, 2), bound(1, 1, 2)).empty()) << "there is no other core";
  EXPECT_TRUE(warnings(bound(0, 5, 8), bound(1, 5, 8)).empty()) << "all that the machine lends";
  EXPECT_TRUE(warnings(facts(0, 2), facts(1, 2)).empty()) << "not bound";
  RankFacts elsewhere = bound(1, 0, 8);
  elsewhere.host = "b";
  EXPECT_EQ(warnings(bound(0, 0, 1), elsewhere).size(), 1u);
  RankFacts crowded = bound(0, 0, 8);
  crowded.threads = 4;
  RankFacts free = facts(1, 2);
  EXPECT_EQ(warnings(crowded, free).size(), 1u) << "one warning is enough";
}

TEST(RankCheck, FactsSurviveTheirWayOverTheWireAndAnythingElseIsNone) {
  RankFacts sent = facts(3, 9);
  sent.device_uuid = "ab";
  sent.threads = 5;
  sent.host_cores = 64;
  sent.quota = 3;
  sent.quota_group = "5:77";
  sent.problem = "a \"quoted\"\nproblem \xff";
  sent.problem_code = 64;
  const std::optional<RankFacts> received = RankFacts::from_json(sent.to_json());
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->name(), sent.name());
  EXPECT_EQ(received->size, 9);
  EXPECT_EQ(received->cores, sent.cores);
  EXPECT_EQ(received->host_cores, 64);
  EXPECT_EQ(received->quota, 3);
  EXPECT_EQ(received->quota_group, "5:77");
  EXPECT_EQ(received->config, sent.config);
  EXPECT_EQ(received->problem_code, 64);
  EXPECT_EQ(sent.to_json().find('\n'), std::string::npos);
  for (const char* text : {"", "GET / HTTP/1.1", "[]", "{}", "{\"rank\":\"x\"}"}) {
    EXPECT_FALSE(RankFacts::from_json(text).has_value()) << text;
  }
}

TEST(RankFacts, ARankIsFoundInAMessageThatBeginsWithItsName) {
  RankFacts facts;
  facts.rank = 37;
  facts.host = "node5.cluster";
  facts.process = 4711;
  const std::optional<NamedRank> named = rank_named_in(facts.name() + " ended without a message");
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank, 37);
  EXPECT_EQ(named->host, "node5.cluster");
  for (const char* text :
       {"", "rank", "rank ", "rank x (a, process 1)", "rank 3", "rank 3 (a", "the rank 3 (a, process 1)"}) {
    EXPECT_FALSE(rank_named_in(text)) << text;
  }
}

}  // namespace
}  // namespace titan
