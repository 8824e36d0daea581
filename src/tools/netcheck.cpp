#include "titan/tools/netcheck.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/distributed/rank_check.h"

namespace titan {
namespace {

/// Each size is measured this many times after one that opens connections; the fastest counts, because what else runs
/// on a machine can only slow an exchange down.
constexpr int64_t kRepetitions = 5;
/// Fewer equals have no median that a slow one does not move.
constexpr size_t kFewestEquals = 3;
/// Below this share of what the hardware promises a link is named. The promise is a sustained rate already.
constexpr double kPromisedShare = 0.5;
/// Smallest tensors: what they take is latency. The next ones are larger by kGrowth, up to the largest.
constexpr int64_t kSmallestBytes = int64_t{64} << 10;
constexpr int64_t kGrowth = 32;
constexpr const char* kMessage = "send to the next";

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What a rate is compared with.
struct Usual {
  double rate = 0;
  const char* what = "median";  // of its equals
};

/// Nothing if the equals are too few.
std::optional<Usual> usual_of(const std::vector<double>& equals) {
  if (equals.size() < kFewestEquals) return std::nullopt;
  return Usual{median(equals)};
}

/// The same for pairs. Of three hosts one that is slow is in two of the three pairs, so that their median is slow, too;
/// of more hosts the median of the pairs is one without it. Ranks of one host share what makes them slow.
std::optional<Usual> usual_of_pairs(const std::vector<double>& rates, bool same_host) {
  if (!same_host && rates.size() == 3) return Usual{*std::max_element(rates.begin(), rates.end()), "fastest"};
  return usual_of(rates);
}

/// The one rank that all pairs have in common, if there are several.
std::optional<int64_t> rank_in_all(const std::vector<const MeasuredPair*>& pairs) {
  if (pairs.size() < 2) return std::nullopt;
  for (const int64_t rank : {pairs[0]->first, pairs[0]->second}) {
    const bool in_all = std::all_of(pairs.begin(), pairs.end(), [&](const MeasuredPair* pair) {
      return pair->first == rank || pair->second == rank;
    });
    if (in_all) return rank;
  }
  return std::nullopt;
}

/// Whether the ranks of a communicator work on what training sends along one mesh axis. The others are unions of axes.
bool is_of_axes(const std::string& name) {
  using namespace communicator_names;
  for (const char* axis : {kGather, kReplicate, kTensor, kContext, kPipeline}) {
    if (name == axis) return true;
  }
  return false;
}

class Measurement {
 public:
  Measurement(const World& world, MeshCommunicators& communicators, const at::Device& device,
              const NetcheckOptions& options)
      : world_(world),
        communicators_(communicators),
        options_(options),
        outgoing_(at::zeros({largest_elements()}, at::TensorOptions(at::kFloat).device(device))),
        incoming_(at::zeros_like(outgoing_)),
        flag_(at::zeros({1}, outgoing_.options())) {}

  nlohmann::json run() {
    publish("host", {{"name", host_name()}});
    gather_hosts();
    std::map<int64_t, std::vector<int64_t>> hosts;
    for (int64_t rank = 0; rank < world_.size; ++rank) hosts[first_on_host(rank)].push_back(rank);
    size_t most = 0;
    std::vector<int64_t> firsts;
    for (const auto& [first, ranks] : hosts) {
      most = std::max(most, ranks.size());
      firsts.push_back(first);
    }
    // Hosts with fewer ranks than others wait in some rounds.
    exchange_with_each_of(hosts[world_.host_ranks.front()], pair_rounds(static_cast<int64_t>(most)).size());
    exchange_with_each_of(firsts, pair_rounds(std::ssize(firsts)).size());
    for (Communicator* communicator : communicators_.all()) {
      if (is_of_axes(communicator->name())) measure(*communicator);
    }
    return {{"pairs", pairs_}, {"collectives", collectives_}};
  }

  /// The first rank on the host of a rank, which stands for the host.
  int64_t first_on_host(int64_t rank) const { return first_on_host_[static_cast<size_t>(rank)]; }

  void publish(const std::string& key, const nlohmann::json& what) const {
    world_.store->set(fmt::format("netcheck/{}/{}", key, world_.rank), what.dump());
  }
  nlohmann::json read(const std::string& key, int64_t rank) const {
    return parse_json(world_.store->get_to_str(fmt::format("netcheck/{}/{}", key, rank)));
  }

 private:
  int64_t largest_elements() const { return options_.largest_bytes / static_cast<int64_t>(sizeof(float)); }

  /// Where ranks are is known to each from the rendezvous only for its own host. A collective tells it in fewer
  /// messages than the store, where each rank would ask rank 0 for all others.
  void gather_hosts() {
    const at::Tensor own = at::full_like(flag_, static_cast<double>(world_.host_ranks.front()));
    const at::Tensor all = at::zeros({world_.size}, own.options());
    communicators_.world->all_gather({all}, {own})->wait();
    const at::Tensor on_cpu = all.to(at::kLong).cpu();  // whole numbers up to 2²⁴ are exact in fp32
    first_on_host_.assign(on_cpu.const_data_ptr<int64_t>(), on_cpu.const_data_ptr<int64_t>() + world_.size);
  }

  /// This rank's partner in a round of `ranks`; kNoRank: it has none.
  int64_t partner_in(const std::vector<std::pair<int64_t, int64_t>>& round, const std::vector<int64_t>& ranks) const {
    for (const auto& [a, b] : round) {
      const int64_t first = ranks[static_cast<size_t>(a)], second = ranks[static_cast<size_t>(b)];
      if (first == world_.rank) return second;
      if (second == world_.rank) return first;
    }
    return kNoRank;
  }

  /// The exchanges of this rank with each of `ranks`, in so many rounds.
  void exchange_with_each_of(const std::vector<int64_t>& ranks, size_t count) {
    const auto rounds = pair_rounds(std::ssize(ranks));
    for (size_t round = 0; round < count; ++round) {
      exchange(round < rounds.size() ? partner_in(rounds[round], ranks) : kNoRank);
    }
  }

  /// Seconds of the fastest of several calls that all members begin together.
  double fastest(Communicator& members, const std::function<Pending()>& call) {
    double best = 0;
    for (int64_t repetition = 0; repetition <= kRepetitions; ++repetition) {
      members.all_reduce({flag_}, Reduction::max)->wait();
      flag_.item<float>();  // on a GPU: the host waits until all have come
      const Clock::time_point begin = Clock::now();
      call()->wait();
      incoming_.select(0, 0).item<float>();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (repetition == 1 || (repetition > 1 && seconds < best)) best = seconds;
    }
    return best;
  }

  void exchange(int64_t partner) {
    const double seconds = fastest(*communicators_.world, [&] {
      if (partner == kNoRank) return communicators_.world->permute({}, {}, kNoRank, kNoRank);
      return communicators_.world->permute({incoming_}, {outgoing_}, partner, partner);
    });
    if (partner != kNoRank) pairs_.push_back({partner, static_cast<double>(options_.largest_bytes) / seconds});
  }

  void measure(Communicator& communicator) {
    const int64_t size = communicator.size(), next = (communicator.rank() + 1) % size,
                  before = (communicator.rank() + size - 1) % size;
    const int64_t largest = options_.largest_bytes;
    for (int64_t bytes = std::min(kSmallestBytes, largest);; bytes = std::min(kGrowth * bytes, largest)) {
      const int64_t part = std::max<int64_t>(bytes / static_cast<int64_t>(sizeof(float)) / size, 1),
                    whole = part * size;
      const at::Tensor in = outgoing_.narrow(0, 0, whole), out = incoming_.narrow(0, 0, whole);
      const at::Tensor in_part = outgoing_.narrow(0, 0, part), out_part = incoming_.narrow(0, 0, part);
      const double sent = static_cast<double>(part * (size - 1)) * sizeof(float);
      const auto add = [&](const char* collective, double bytes_sent, const std::function<Pending()>& call) {
        const double seconds = fastest(communicator, call);
        collectives_.push_back({{"communicator", communicator.name()},
                                {"collective", collective},
                                {"bytes", whole * static_cast<int64_t>(sizeof(float))},
                                {"seconds", seconds},
                                {"rate", bytes_sent / seconds}});
      };
      add("all-gather", sent, [&] { return communicator.all_gather({out}, {in_part}); });
      add("reduce-scatter", sent, [&] { return communicator.reduce_scatter({out_part}, {in}); });
      add("all-reduce", 2 * sent, [&] { return communicator.all_reduce({out}); });
      const double message = static_cast<double>(whole) * sizeof(float);
      add(kMessage, message, [&] { return communicator.permute({out}, {in}, next, before); });
      if (bytes >= largest) return;
    }
  }

  const World& world_;
  MeshCommunicators& communicators_;
  const NetcheckOptions& options_;
  at::Tensor outgoing_, incoming_;      // [largest_bytes / 4], fp32
  at::Tensor flag_;                     // [1]
  std::vector<int64_t> first_on_host_;  // of each rank
  std::vector<std::pair<int64_t, double>> pairs_;
  nlohmann::json collectives_ = nlohmann::json::array();
};

std::string ranks_words(const std::vector<int64_t>& ranks) {
  if (ranks.size() > 8) return fmt::format("{} ranks from {} to {}", ranks.size(), ranks.front(), ranks.back());
  return "ranks " + number_list(ranks);
}

std::string rate_words(double rate) { return fmt::format("{:.3g} GB/s", rate / 1e9); }

}  // namespace

std::vector<std::vector<std::pair<int64_t, int64_t>>> pair_rounds(int64_t count) {
  if (count < 2) return {};
  const int64_t places = count + count % 2;  // of an odd count one is empty: its partner has no exchange in that round
  std::vector<std::vector<std::pair<int64_t, int64_t>>> rounds;
  for (int64_t round = 0; round < places - 1; ++round) {
    const auto seat = [&](int64_t place) { return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1); };
    std::vector<std::pair<int64_t, int64_t>>& pairs = rounds.emplace_back();
    for (int64_t place = 0; place < places / 2; ++place) {
      const int64_t a = seat(place), b = seat(places - 1 - place);
      if (a < count && b < count) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

std::optional<NetcheckResult> measure_network(const World& world, const DeviceMesh& mesh,
                                              MeshCommunicators& communicators, const at::Device& device,
                                              const NetcheckOptions& options) {
  TITAN_CHECK(world.store && communicators.world && options.largest_bytes >= kSmallestBytes, world.size,
              options.largest_bytes);
  Measurement measurement(world, communicators, device, options);
  measurement.publish("result", measurement.run());
  if (world.rank != 0) return std::nullopt;
  NetcheckResult result;
  std::map<std::pair<int64_t, int64_t>, MeasuredPair> pairs;
  std::map<std::tuple<std::string, int64_t, int64_t, std::string>, MeasuredCollective> collectives;
  for (int64_t rank = 0; rank < world.size; ++rank) {
    result.hosts.push_back(measurement.read("host", rank)["name"]);
  }
  for (int64_t rank = 0; rank < world.size; ++rank) {
    const nlohmann::json said = measurement.read("result", rank);
    for (const auto& [partner, rate] : said["pairs"].get<std::vector<std::pair<int64_t, double>>>()) {
      const std::pair<int64_t, int64_t> key = std::minmax(rank, partner);
      const bool same_host = measurement.first_on_host(rank) == measurement.first_on_host(partner);
      MeasuredPair& pair = pairs.try_emplace(key, MeasuredPair{key.first, key.second, same_host, rate}).first->second;
      pair.rate = std::min(pair.rate, rate);
    }
    for (const nlohmann::json& one : said["collectives"]) {
      const std::string name = one["communicator"], collective = one["collective"];
      const std::vector<int64_t> ranks = mesh.members(rank, axes_of(name));
      const int64_t bytes = one["bytes"];
      std::set<int64_t> on_hosts;
      for (const int64_t member : ranks) on_hosts.insert(measurement.first_on_host(member));
      const MeasuredCollective mine{name, ranks, collective, bytes, one["seconds"], one["rate"], std::ssize(on_hosts)};
      MeasuredCollective& slowest =
          collectives.try_emplace({name, ranks.front(), bytes, collective}, mine).first->second;
      if (mine.rate < slowest.rate) slowest = mine;
    }
  }
  for (const auto& [key, pair] : pairs) result.pairs.push_back(pair);
  for (const auto& [key, collective] : collectives) result.collectives.push_back(collective);
  mark_largest(result.collectives);
  return result;
}

void mark_largest(std::vector<MeasuredCollective>& collectives) {
  std::map<std::pair<std::string, std::string>, int64_t> largest;
  for (const MeasuredCollective& one : collectives) {
    int64_t& bytes = largest[{one.communicator, one.collective}];
    bytes = std::max(bytes, one.bytes);
  }
  for (MeasuredCollective& one : collectives) {
    one.is_largest = one.bytes == largest[{one.communicator, one.collective}];
  }
}

std::optional<double> promised_rate(const MeasuredCollective& one, const NetcheckOptions& options) {
  if (one.ranks.size() < 2 || !one.is_largest) return std::nullopt;
  if (one.hosts == 1) return options.host_rate;
  if (!options.network_rate || one.collective == kMessage) return options.network_rate;
  const double cards = static_cast<double>(one.ranks.size()) / static_cast<double>(one.hosts);
  const double across = *options.network_rate * cards;
  return options.host_rate ? std::min(across, *options.host_rate) : across;
}

std::string collectives_verdict(const NetcheckResult& result, const NetcheckOptions& options) {
  int64_t count = 0;
  double least = 0;
  for (const MeasuredCollective& one : result.collectives) {
    const std::optional<double> promised = promised_rate(one, options);
    if (!promised) continue;
    const double share = one.rate / *promised;
    least = count++ == 0 ? share : std::min(least, share);
  }
  if (count == 0) return {};
  return fmt::format("the slowest of {} collective{} has {:.0f} % of what the hardware promises", count,
                     count == 1 ? "" : "s", 100 * least);
}

NetcheckFindings netcheck_findings(const NetcheckResult& result, const NetcheckOptions& options) {
  NetcheckFindings findings;
  // Whether it is slow, and then said.
  const auto judge = [&](const std::string& what, double rate, const std::optional<Usual>& usual,
                         const std::string& equals, const std::optional<double>& promised) {
    if (usual && rate * options.slow < usual->rate) {
      findings.slow.push_back(fmt::format("{}: {}, where the {} of {} is {}", what, rate_words(rate), usual->what,
                                          equals, rate_words(usual->rate)));
      return true;
    }
    if (!promised || rate >= kPromisedShare * *promised) return false;
    findings.slow.push_back(
        fmt::format("{}: {}, where the hardware promises {}", what, rate_words(rate), rate_words(*promised)));
    return true;
  };
  for (const bool same_host : {true, false}) {
    std::vector<double> rates;
    for (const MeasuredPair& pair : result.pairs) {
      if (pair.same_host == same_host) rates.push_back(pair.rate);
    }
    const std::optional<Usual> usual = usual_of_pairs(rates, same_host);
    std::vector<const MeasuredPair*> slow;
    for (const MeasuredPair& pair : result.pairs) {
      if (pair.same_host != same_host) continue;
      const std::string& first = result.hosts[static_cast<size_t>(pair.first)];
      const std::string& second = result.hosts[static_cast<size_t>(pair.second)];
      const bool is_slow =
          judge(same_host ? fmt::format("ranks {} and {} on {}", pair.first, pair.second, first)
                          : fmt::format("hosts {} and {} (ranks {} and {})", first, second, pair.first, pair.second),
                pair.rate, usual, same_host ? "pairs on one host" : "pairs of hosts",
                same_host ? options.host_rate : options.network_rate);
      if (is_slow) slow.push_back(&pair);
    }
    if (const std::optional<int64_t> rank = rank_in_all(slow)) {
      const std::string& host = result.hosts[static_cast<size_t>(*rank)];
      findings.in_common.push_back(fmt::format("all {} slow {} have {} in common", slow.size(),
                                               same_host ? "pairs on one host" : "pairs of hosts",
                                               same_host ? fmt::format("rank {} on {}", *rank, host) : "host " + host));
    }
  }
  using Equals = std::tuple<std::string, std::string, int64_t>;
  const auto equals_of = [](const MeasuredCollective& one) {
    return Equals{one.communicator, one.collective, one.bytes};
  };
  std::map<Equals, std::vector<double>> rates;
  for (const MeasuredCollective& one : result.collectives) rates[equals_of(one)].push_back(one.rate);
  std::map<Equals, std::optional<Usual>> usual;
  for (const auto& [equals, of_them] : rates) usual[equals] = usual_of(of_them);
  for (const MeasuredCollective& one : result.collectives) {
    judge(fmt::format("{} of {} over {}, {}", one.collective, one.communicator, ranks_words(one.ranks),
                      human_bytes(static_cast<double>(one.bytes))),
          one.rate, usual[equals_of(one)], "its equals", promised_rate(one, options));
  }
  return findings;
}

bool netcheck_compares(const NetcheckResult& result, const NetcheckOptions& options) {
  if (options.host_rate || options.network_rate) return true;
  for (const bool same_host : {true, false}) {
    const auto pairs = std::count_if(result.pairs.begin(), result.pairs.end(),
                                     [&](const MeasuredPair& pair) { return pair.same_host == same_host; });
    if (pairs >= static_cast<std::ptrdiff_t>(kFewestEquals)) return true;
  }
  return false;
}

std::vector<std::string> netcheck_table(const NetcheckResult& result, const NetcheckOptions& options) {
  const bool has_promise = options.host_rate || options.network_rate;
  std::vector<std::string> lines{fmt::format("  {:<10} {:>6}  {:<17} {:>10} {:>12} {:>12}{}", "axis", "ranks",
                                             "collective", "bytes", "time", "GB/s", has_promise ? "  promised" : "")};
  // Of several communicators of a name, the slowest.
  std::map<std::tuple<std::string, std::string, int64_t>, const MeasuredCollective*> slowest;
  for (const MeasuredCollective& one : result.collectives) {
    const MeasuredCollective*& shown = slowest[{one.communicator, one.collective, one.bytes}];
    if (!shown || one.rate < shown->rate) shown = &one;
  }
  for (const auto& [key, one] : slowest) {
    const std::optional<double> promised = promised_rate(*one, options);
    lines.push_back(fmt::format("  {:<10} {:>6}  {:<17} {:>10} {:>9.3f} ms {:>12.3g}{}", one->communicator,
                                one->ranks.size(), one->collective, human_bytes(static_cast<double>(one->bytes)),
                                1e3 * one->seconds, one->rate / 1e9,
                                promised ? fmt::format("  {:>8.3g}", *promised / 1e9) : ""));
  }
  for (const bool same_host : {true, false}) {
    const MeasuredPair* slow = nullptr;
    double fastest = 0;
    for (const MeasuredPair& pair : result.pairs) {
      if (pair.same_host != same_host) continue;
      if (!slow || pair.rate < slow->rate) slow = &pair;
      fastest = std::max(fastest, pair.rate);
    }
    if (!slow) continue;
    lines.push_back(fmt::format("  pairs {}: {} to {} in each direction; the slowest is ranks {} and {}",
                                same_host ? "on one host" : "of hosts", rate_words(slow->rate), rate_words(fastest),
                                slow->first, slow->second));
  }
  return lines;
}

nlohmann::ordered_json netcheck_json(const NetcheckResult& result, const NetcheckOptions& options,
                                     const NetcheckFindings& findings) {
  nlohmann::ordered_json json{{"passed", findings.slow.empty()},
                              {"compared", netcheck_compares(result, options)},
                              {"problems", findings.slow},
                              {"in_common", findings.in_common},
                              {"hosts", result.hosts}};
  json["pairs"] = nlohmann::ordered_json::array();
  for (const MeasuredPair& pair : result.pairs) {
    json["pairs"].push_back(
        {{"ranks", {pair.first, pair.second}}, {"same_host", pair.same_host}, {"gb_per_second", pair.rate / 1e9}});
  }
  json["collectives"] = nlohmann::ordered_json::array();
  for (const MeasuredCollective& one : result.collectives) {
    json["collectives"].push_back({{"communicator", one.communicator},
                                   {"ranks", one.ranks},
                                   {"collective", one.collective},
                                   {"bytes", one.bytes},
                                   {"seconds", one.seconds},
                                   {"gb_per_second", one.rate / 1e9}});
    const std::optional<double> promised = promised_rate(one, options);
    if (promised) json["collectives"].back()["promised_gb_per_second"] = *promised / 1e9;
  }
  return json;
}

}  // namespace titan
