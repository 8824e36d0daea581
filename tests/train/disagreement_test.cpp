#include "src/train/disagreement.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace titan {
namespace {

const StateName kWeightName{"layers.0.attention.wq.weight", "weight"},
    kMomentName{"layers.1.attention.wq.weight", "exp_avg"};

RankFindings findings_of(int64_t rank, std::vector<RankFindings::Hashed> hashed) {
  return {rank, "node" + std::to_string(rank), std::move(hashed), {}, 0};
}

TEST(Disagreement, TheMostFrequentBitsAreTakenForRight) {
  const std::vector<RankFindings> ranks{
      findings_of(0, {{kMomentName, "[0:4]", 7}}), findings_of(1, {{kMomentName, "[0:4]", 7}}),
      findings_of(2, {{kMomentName, "[0:4]", 8}}), findings_of(3, {{kMomentName, "[0:4]", 7}})};
  const NamedRanks found = judge(ranks);
  EXPECT_EQ(found.ranks, (std::vector<int64_t>{2}));
  EXPECT_EQ(found.hosts, std::vector<std::string>{"node2"});
  EXPECT_EQ(found.text,
            "exp_avg of layers.1.attention.wq.weight on rank 2 (node2) differs from the replicas on ranks 0, 1 and 3");
}

TEST(Disagreement, OfTwoReplicasBothAreNamed) {
  const NamedRanks found =
      judge(std::vector{findings_of(1, {{kWeightName, "[0:4]", 7}}), findings_of(3, {{kWeightName, "[0:4]", 8}})});
  EXPECT_EQ(found.ranks, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(found.text, "the replicas of layers.0.attention.wq.weight on ranks 1 (node1) and 3 (node3) differ");
}

TEST(Disagreement, AParameterIsNamedOnceWithAllItsStates) {
  const auto of = [](int64_t rank, int64_t hash) {
    return findings_of(rank, {{{"w", "weight"}, "[0:4]", hash},
                              {{"w", "weight"}, "[4:8]", hash},
                              {{"w", "exp_avg"}, "[0:4]", hash},
                              {{"w", "exp_avg_sq"}, "[0:4]", hash}});
  };
  EXPECT_EQ(judge(std::vector{of(0, 1), of(1, 2)}).text,
            "the replicas of exp_avg, exp_avg_sq and weight of w on ranks 0 (node0) and 1 (node1) differ");
  EXPECT_EQ(judge(std::vector{of(0, 1), of(1, 2), of(2, 1)}).text,
            "exp_avg, exp_avg_sq and weight of w on rank 1 (node1) differ from the replicas on ranks 0 and 2");
}

TEST(Disagreement, PartsOfATensorAreNoReplicas) {
  const NamedRanks found =
      judge(std::vector{findings_of(0, {{kWeightName, "[0:4]", 1}}), findings_of(1, {{kWeightName, "[4:8]", 2}}),
                        findings_of(2, {{kWeightName, "[0:4]", 3}}), findings_of(3, {{kWeightName, "[4:8]", 2}})});
  EXPECT_EQ(found.ranks, (std::vector<int64_t>{0, 2}));
}

TEST(Disagreement, ARankWhoseMemoryHasChangedNamesItself) {
  std::vector<RankFindings> ranks{findings_of(0, {}), findings_of(1, {})};
  ranks[1].changed = {kWeightName, kMomentName};
  const NamedRanks found = judge(ranks);
  EXPECT_EQ(found.ranks, (std::vector<int64_t>{1}));
  EXPECT_EQ(found.text,
            "rank 1 (node1) finds other bits in its memory than it wrote there: layers.0.attention.wq.weight, exp_avg "
            "of layers.1.attention.wq.weight");
}

TEST(Disagreement, AMessageNamesThreeTensors) {
  RankFindings ranks[2]{findings_of(0, {}), findings_of(1, {})};
  for (int64_t i = 0; i < 5; ++i) {
    const StateName name{"w" + std::to_string(i), "weight"};
    ranks[0].unequal.push_back({name, "", 1});
    ranks[1].unequal.push_back({name, "", 2});
  }
  ranks[0].left_out = ranks[1].left_out = 9;
  EXPECT_EQ(judge(ranks).text, "the replicas of w0, w1, w2 and 11 more on ranks 0 (node0) and 1 (node1) differ");
}

TEST(Disagreement, FindingsTravelAsJson) {
  RankFindings findings = findings_of(3, {{kMomentName, "[0:4, 8:16]", -5}});
  findings.changed = {kWeightName};
  findings.left_out = 2;
  const RankFindings read = rank_findings_from_json(to_json(findings));
  EXPECT_EQ(to_json(read), to_json(findings));
  EXPECT_EQ(read.unequal[0].hash, -5);
  EXPECT_THROW(rank_findings_from_json(nlohmann::json::object()), nlohmann::json::exception);
}

}  // namespace
}  // namespace titan
