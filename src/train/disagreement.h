// Which ranks have wrong weights, moments or results, from what all of them report: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace titan {

/// A weight or a moment of a rank: "exp_avg of layers.0.attention.wq.weight".
struct StateName {
  std::string parameter;
  std::string state;  // "weight", or the moment's name

  std::string words() const { return state == "weight" ? parameter : state + " of " + parameter; }
  bool operator==(const StateName&) const = default;
};

/// What one rank reports.
struct RankFindings {
  struct Hashed {
    StateName name;
    std::string shard;  // which part of the whole tensor; ranks with the same part are replicas
    int64_t hash = 0;
  };
  int64_t rank = 0;
  std::string host;
  std::vector<Hashed> unequal;     // replicas have other bits
  std::vector<StateName> changed;  // its own have changed since the optimizer wrote them
  int64_t left_out = 0;            // findings beyond those
};

nlohmann::json to_json(const RankFindings& findings);
/// Throws nlohmann's exceptions.
RankFindings rank_findings_from_json(const nlohmann::json& json);

/// Ranks that should have equal bits, by their bits.
using Replicas = std::map<int64_t, std::vector<int64_t>>;

/// The most frequent bits are taken for right; if no bits are, all ranks are named.
struct Sides {
  std::vector<int64_t> wrong;  // ascending
  std::vector<int64_t> right;
};
Sides sides_of(const Replicas& by_hash);

/// Ranks that are named for something, ascending.
struct NamedRanks {
  std::vector<int64_t> ranks;
  std::vector<std::string> hosts;  // of each
  std::string text;                // what was found, and where: "wq.weight and 3 more on rank 2 (node7)"
};
/// A rank whose own bits have changed names itself; of replicas those on the wrong side are named.
NamedRanks judge(std::span<const RankFindings> ranks);

}  // namespace titan
