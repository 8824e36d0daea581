// titan_train netcheck: measures the collectives of every mesh axis by size, and exchanges between ranks and between
// hosts pair by pair, and names what is slower than its equals or than the hardware promises.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "titan/distributed/mesh_communicators.h"
#include "titan/distributed/world.h"

namespace titan {

/// An exchange of two ranks: each sends `NetcheckOptions::largest_bytes` and receives as many at the same time.
struct MeasuredPair {
  int64_t first = 0, second = 0;  // ranks
  bool same_host = true;
  double rate = 0;  // bytes per second of each direction
};

/// A collective over the ranks of one communicator; the slowest rank counts.
struct MeasuredCollective {
  std::string communicator;      // "gather", "tensor", …
  std::vector<int64_t> ranks;    // its members
  std::string collective;        // "all-gather", …
  int64_t bytes = 0;             // of the whole tensor
  double seconds = 0, rate = 0;  // rate: bytes per second that each rank sends, (n - 1) / n of the tensor; twice that
                                 // for an all-reduce. nccl-tests call it bus bandwidth
  int64_t hosts = 1;             // of its members
  bool is_largest = true;        // of those with this communicator and collective: see mark_largest
};

struct NetcheckOptions {
  /// So large that the rate shows the link and not the latency, which the smallest messages show.
  int64_t largest_bytes = int64_t{64} << 20;
  /// A pair or a communicator is slow below 1 / `slow` of the median rate of its equals. A link that has lost half of
  /// its lanes is at 2; equal links differ by less than 1.5 unless other programs use them.
  double slow = 1.5;
  /// What the hardware promises, in bytes per second and direction; none: only equals are compared.
  std::optional<double> host_rate = {}, network_rate = {};
};

struct NetcheckResult {
  std::vector<std::string> hosts;  // of each rank
  std::vector<MeasuredPair> pairs;
  std::vector<MeasuredCollective> collectives;
};

/// Rounds of exchanges among `count` members: each pair is in one round, and each member in at most one pair of a
/// round. The first member keeps its place and the others rotate (Kirkman's round-robin schedule).
std::vector<std::vector<std::pair<int64_t, int64_t>>> pair_rounds(int64_t count);

/// Measures. Collective over all ranks; only rank 0 has a result. `device`: where the tensors are.
std::optional<NetcheckResult> measure_network(const World& world, const DeviceMesh& mesh,
                                              MeshCommunicators& communicators, const at::Device& device,
                                              const NetcheckOptions& options);

/// Sets `is_largest` of each: whether none with the same communicator and collective has more bytes.
void mark_largest(std::vector<MeasuredCollective>& collectives);

/// The rate that the hardware promises for a collective, by the formula of the estimate. On one host it is that of a
/// link; across hosts at most that of the network cards that the ring uses on a host, and for a message that of one
/// card. None if `options` have no promise, or if the same collective of the same communicator was measured with larger
/// tensors: the time of small ones is latency.
std::optional<double> promised_rate(const MeasuredCollective& one, const NetcheckOptions& options);

struct NetcheckFindings {
  std::vector<std::string> slow;       // a sentence for each pair and communicator
  std::vector<std::string> in_common;  // for each kind of pairs: the host or rank that is in all slow ones
};
/// Pairs are compared with pairs of the same kind (on one host, or between hosts), communicators with those of the same
/// name and collective, each if there are at least three; both also with what the hardware promises.
NetcheckFindings netcheck_findings(const NetcheckResult& result, const NetcheckOptions& options);

/// Whether netcheck_findings had anything to compare with.
bool netcheck_compares(const NetcheckResult& result, const NetcheckOptions& options);

/// The smallest share of the promised rate that a collective reaches: "the slowest of 8 collectives has 83 % of what
/// the hardware promises". Empty without a promise.
std::string collectives_verdict(const NetcheckResult& result, const NetcheckOptions& options);

/// The table of the collectives and the slowest pairs.
std::vector<std::string> netcheck_table(const NetcheckResult& result, const NetcheckOptions& options);
nlohmann::ordered_json netcheck_json(const NetcheckResult& result, const NetcheckOptions& options,
                                     const NetcheckFindings& findings);

}  // namespace titan
