#include "disagreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "titan/base/text.h"
#include "titan/distributed/rank_check.h"

namespace titan {
namespace {

/// A message names no more tensors than this: on a host that fails they may all be wrong, and the first few show that.
constexpr size_t kMostShown = 3;

using Hosts = std::map<int64_t, std::string>;

/// "rank 2 (node7)", "ranks 0 (node3) and 2 (node7)".
std::string ranks_with_hosts(const std::vector<int64_t>& ranks, const Hosts& hosts) {
  std::vector<std::string> words;
  for (const int64_t rank : ranks) words.push_back(fmt::format("{} ({})", rank, hosts.at(rank)));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(words, " and ");
}

/// Each parameter once, with all its states: "exp_avg and weight of layers.0.attention.wq.weight".
std::vector<std::string> by_parameter(const std::vector<StateName>& names) {
  std::vector<std::pair<std::string, std::vector<std::string>>> parameters;
  for (const StateName& name : names) {
    auto place = std::find_if(parameters.begin(), parameters.end(),
                              [&](const auto& one) { return one.first == name.parameter; });
    if (place == parameters.end()) place = parameters.insert(place, {name.parameter, {}});
    std::vector<std::string>& states = place->second;
    // Again for another part of the tensor.
    if (std::find(states.begin(), states.end(), name.state) == states.end()) states.push_back(name.state);
  }
  std::vector<std::string> words;
  for (const auto& [parameter, states] : parameters) {
    const std::string all_but_last = join(std::span(states).first(states.size() - 1), ", ");
    words.push_back(all_but_last.empty() ? StateName{parameter, states.back()}.words()
                                         : fmt::format("{} and {} of {}", all_but_last, states.back(), parameter));
  }
  return words;
}

std::string first_names(const std::vector<StateName>& all, int64_t left_out) {
  const std::vector<std::string> names = by_parameter(all);
  std::string text = join(std::span(names).first(std::min(names.size(), kMostShown)), ", ");
  const int64_t more = std::max<int64_t>(0, std::ssize(names) - static_cast<int64_t>(kMostShown)) + left_out;
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

}  // namespace

Sides sides_of(const Replicas& by_hash) {
  std::vector<std::vector<int64_t>> sides;
  for (const auto& [hash, ranks] : by_hash) sides.push_back(ranks);
  std::stable_sort(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  Sides split;
  const bool is_clear = sides.size() > 1 && sides[0].size() > sides[1].size();
  for (size_t i = 0; i < sides.size(); ++i) {
    std::vector<int64_t>& to = is_clear && i == 0 ? split.right : split.wrong;
    to.insert(to.end(), sides[i].begin(), sides[i].end());
  }
  std::sort(split.wrong.begin(), split.wrong.end());
  return split;
}

nlohmann::json to_json(const RankFindings& findings) {
  nlohmann::json json{{"rank", findings.rank}, {"host", findings.host}, {"left_out", findings.left_out}};
  json["unequal"] = json["changed"] = nlohmann::json::array();
  for (const RankFindings::Hashed& one : findings.unequal) {
    json["unequal"].push_back({one.name.parameter, one.name.state, one.shard, one.hash});
  }
  for (const StateName& name : findings.changed) json["changed"].push_back({name.parameter, name.state});
  return json;
}

RankFindings rank_findings_from_json(const nlohmann::json& json) {
  RankFindings findings{
      json.at("rank").get<int64_t>(), json.at("host").get<std::string>(), {}, {}, json.at("left_out").get<int64_t>()};
  for (const nlohmann::json& one : json.at("unequal")) {
    findings.unequal.push_back({{one.at(0).get<std::string>(), one.at(1).get<std::string>()},
                                one.at(2).get<std::string>(),
                                one.at(3).get<int64_t>()});
  }
  for (const nlohmann::json& one : json.at("changed")) {
    findings.changed.push_back({one.at(0).get<std::string>(), one.at(1).get<std::string>()});
  }
  return findings;
}

NamedRanks judge(std::span<const RankFindings> ranks) {
  Hosts hosts;
  std::vector<std::string> sentences;
  std::set<int64_t> named;
  int64_t left_out = 0;
  std::map<std::tuple<std::string, std::string, std::string>, Replicas> replicas;
  for (const RankFindings& findings : ranks) {
    hosts[findings.rank] = findings.host;
    for (const RankFindings::Hashed& one : findings.unequal) {
      replicas[{one.name.parameter, one.name.state, one.shard}][one.hash].push_back(findings.rank);
    }
    if (findings.changed.empty()) {
      left_out = std::max(left_out, findings.left_out);
      continue;
    }
    sentences.push_back(fmt::format("rank {} ({}) finds other bits in its memory than it wrote there: {}",
                                    findings.rank, findings.host, first_names(findings.changed, findings.left_out)));
    named.insert(findings.rank);
  }
  // One sentence for all tensors of which the same ranks are wrong.
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, std::vector<StateName>> by_ranks;
  for (const auto& [key, by_hash] : replicas) {
    if (by_hash.size() == 1) continue;  // these replicas agree; others of the same weight do not
    Sides split = sides_of(by_hash);
    named.insert(split.wrong.begin(), split.wrong.end());
    by_ranks[{std::move(split.wrong), std::move(split.right)}].push_back({std::get<0>(key), std::get<1>(key)});
  }
  for (const auto& [sides, names] : by_ranks) {
    const auto& [wrong, right] = sides;
    sentences.push_back(right.empty() ? fmt::format("the replicas of {} on {} differ", first_names(names, left_out),
                                                    ranks_with_hosts(wrong, hosts))
                                      : fmt::format("{} on {} differ{} from the replicas on rank{} {}",
                                                    first_names(names, left_out), ranks_with_hosts(wrong, hosts),
                                                    names.size() == 1 && left_out == 0 ? "s" : "",
                                                    right.size() == 1 ? "" : "s", number_list(right)));
  }
  NamedRanks found{{named.begin(), named.end()}, {}, join(sentences, "; ")};
  for (const int64_t rank : found.ranks) found.hosts.push_back(hosts.at(rank));
  return found;
}

}  // namespace titan
