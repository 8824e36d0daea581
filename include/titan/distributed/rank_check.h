// The ranks of a run as they report to rank 0: who is there, whether they belong together, and the start table.
// Pure bookkeeping: how the reports travel is the rendezvous' business.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// What a rank says of itself when it joins.
struct RankFacts {
  int64_t rank = 0;
  int64_t size = 1;
  std::string host;
  std::string machine;      ///< tells two hosts of one name apart; empty: unknown
  int64_t local_rank = -1;  ///< on its host, as its launcher has it; -1: that does not say
  int64_t local_size = -1;
  int64_t process = 0;
  std::string device;       ///< "cpu", "cuda:3"; chosen from `gpus` by the rendezvous check when those are given
  std::string device_uuid;  ///< of a GPU; empty: may be shared
  std::vector<std::string> gpus = {};  ///< uuids of all in sight, of a rank that cannot tell yet which is its own
  std::vector<int> cores;              ///< that it may run on
  int64_t host_cores = 0;              ///< of its machine, whether it may use them or not
  int64_t threads = 0;                 ///< that its user asks for; 0: as many as it has cores
  std::string program;                 ///< fingerprint of the executable
  std::string config;                  ///< the resolved config as JSON, without what belongs to one rank
  /// Not empty: why this rank cannot take part (exit code `problem_code`); it then only tells the others.
  std::string problem;
  int problem_code = 0;

  /// "rank 3 (host, process 4711)".
  std::string name() const;
  std::string to_json() const;
  /// Nothing when `text` is not what to_json writes.
  static std::optional<RankFacts> from_json(std::string_view text);
};

/// Where a rank is on its host.
struct HostPlace {
  int64_t local_rank = 0;           ///< its launcher's word, else its position in host_ranks
  std::vector<int64_t> host_ranks;  ///< the ranks of its host, rising
};

/// Why a run cannot start.
struct Refusal {
  int code;  ///< exit code of every rank
  std::string text;
};

/// Whether a process that failed may end with `code`, which a peer has told: one of ExitCode that is no success.
bool is_failure_code(int code);

class RankCheck {
 public:
  /// `zero`: the facts of rank 0, with which everybody's are compared.
  explicit RankCheck(RankFacts zero);

  /// A refusal, or nothing when the rank fits: the same world size, a free place, a GPU of its own, the same program
  /// and the same config.
  std::optional<Refusal> add(RankFacts facts);
  bool is_complete() const { return present_ == size(); }
  /// Of a complete rendezvous check: finds out who shares a host, and gives every rank that has no GPU yet the one of
  /// its place. A refusal when what the launchers say of hosts is not so, when a place has no GPU, or when two have
  /// one.
  std::optional<Refusal> settle();
  const HostPlace& place(int64_t rank) const { return places_[static_cast<size_t>(rank)]; }
  /// "rank 3", "ranks 3 and 5", "ranks 3, 5 and 6 to 9".
  std::string missing() const;
  const std::optional<RankFacts>& facts(int64_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  /// Cores that a rank may count on: those it may run on, shared evenly with the ranks of its host that have the same.
  int64_t core_share(int64_t rank) const;
  /// The start table of a complete rendezvous check, a line each, at most `most` ranks; then one line per warning.
  std::vector<std::string> table(int64_t most = 64) const;
  /// Ranks that ask for more threads than their share of cores, and ranks bound to one core where there are more.
  std::vector<std::string> warnings() const;

 private:
  std::optional<Refusal> disagreement(const RankFacts& facts) const;
  std::optional<Refusal> choose_gpu(int64_t rank);
  std::vector<int64_t> crowded_ranks() const;
  std::vector<int64_t> bound_ranks() const;

  std::vector<std::optional<RankFacts>> ranks_;
  std::vector<HostPlace> places_;  // of a settled rendezvous check
  int64_t present_ = 0;
};

/// "3", "3 and 5", "3, 5 and 7 to 9": rising numbers as a sentence has them.
std::string number_list(const std::vector<int64_t>& numbers);

}  // namespace titan
