// The rendezvous check on rank 0: which ranks have joined, whether their world size, devices, program and config agree,
// and the start table. Does no communication; rendezvous.h does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace titan {

/// What a rank reports when it joins.
struct RankFacts {
  int64_t rank = 0;
  int64_t size = 1;
  std::string host;
  std::string machine;      ///< machine id, distinguishes hosts of one name; empty: unknown
  int64_t local_rank = -1;  ///< on its host, from the launcher; -1: not given
  int64_t local_size = -1;
  int64_t process = 0;
  std::string device;       ///< "cpu", "cuda:3"; chosen from `gpus` by the rendezvous check when those are given
  std::string device_uuid;  ///< of a GPU; empty: may be shared
  std::vector<std::string> gpus = {};  ///< uuids of all visible GPUs, if not assigned yet
  std::vector<int> cores;              ///< CPU affinity
  int64_t host_cores = 0;              ///< all cores of the host, usable or not
  int64_t quota = 0;                   ///< processors that the CPU quota of a control group allows; 0: no quota
  std::string quota_group;             ///< identifies that group on its host
  int64_t threads = 0;                 ///< requested; 0: one per core
  std::string program;                 ///< fingerprint of the executable
  std::string config;                  ///< the resolved config as JSON, without what belongs to one rank
  /// Not empty: why this rank cannot take part (exit code `problem_code`); ends all ranks.
  std::string problem;
  int problem_code = 0;

  /// "rank 3 (host, process 4711)".
  std::string name() const;
  std::string to_json() const;
  /// nullopt when `text` is not output of to_json.
  static std::optional<RankFacts> from_json(std::string_view text);
};

/// A rank as messages name it.
struct NamedRank {
  int64_t rank = 0;
  std::string host;
};

/// The rank whose RankFacts::name() a message begins with.
std::optional<NamedRank> rank_named_in(std::string_view text);

/// Where a rank is on its host.
struct HostPlace {
  int64_t local_rank = 0;           ///< from the launcher, else the position in host_ranks
  std::vector<int64_t> host_ranks;  ///< the ranks of its host, ascending
};

/// Why a run cannot start.
struct Refusal {
  int code;  ///< exit code of every rank
  std::string text;
  bool is_over = false;  ///< this rank 0 ends, and the fault is no rank's: another attempt may follow
};

/// True if `code`, received from a peer, is an ExitCode other than success.
bool is_failure_code(int code);

class RankCheck {
 public:
  /// `zero`: the facts of rank 0, with which those of all ranks are compared.
  explicit RankCheck(RankFacts zero);

  /// A refusal, or nothing when the rank fits: the same world size, a free place, a GPU of its own, the same program
  /// and the same config.
  std::optional<Refusal> add(RankFacts facts);
  /// The rank is missing again.
  void remove(int64_t rank);
  bool is_complete() const { return present_ == size(); }
  /// Requires is_complete(). Groups the ranks by host and assigns each rank without a GPU the one of its local
  /// rank. A refusal when the launchers' local ranks do not match the hosts, a local rank has no GPU, or two share one.
  std::optional<Refusal> settle();
  HostPlace place(int64_t rank) const;
  /// "rank 3", "ranks 3 and 5", "ranks 3, 5 and 6 to 9".
  std::string missing() const;
  const std::optional<RankFacts>& facts(int64_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  /// Cores available to a rank: its affinity set, divided evenly among the ranks of its host with the same set, or its
  /// CPU quota, divided among those of the same control group, if that is less.
  int64_t core_share(int64_t rank) const;
  /// The start table of a complete check: one line per rank, at most `most`; then one line per warning.
  std::vector<std::string> table(int64_t most = 64) const;
  /// Ranks that request more threads than their share of cores, and ranks bound to one core of several.
  std::vector<std::string> warnings() const;

 private:
  std::optional<Refusal> disagreement(const RankFacts& facts) const;
  std::optional<Refusal> choose_gpu(int64_t rank);
  std::vector<int64_t> crowded_ranks() const;
  std::vector<int64_t> bound_ranks() const;

  /// Adds `sign`, 1 or -1, to the numbers of ranks that share host, cores, quota or GPU with this one.
  void count(const RankFacts& facts, int64_t sign);

  using Host = std::pair<std::string, std::string>;  // name and machine id

  std::vector<std::optional<RankFacts>> ranks_;
  int64_t present_ = 0;
  // Numbers of ranks, kept up to date so that a rank need not be compared with all others.
  std::map<Host, int64_t> on_host_;
  std::map<std::pair<Host, std::vector<int>>, int64_t> on_cores_;
  std::map<std::pair<Host, std::string>, int64_t> in_quota_group_;
  std::map<std::pair<Host, std::string>, int64_t> rank_on_gpu_;  // by the GPU's uuid
  // What is known once the check is settled.
  std::map<Host, std::vector<int64_t>> ranks_of_host_;
  std::vector<int64_t> local_ranks_;
};

/// "3", "3 and 5", "3, 5 and 7 to 9": ascending numbers as a phrase.
std::string number_list(const std::vector<int64_t>& numbers);

}  // namespace titan
