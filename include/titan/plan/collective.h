// The collectives that ranks call, and their traffic: what a plan predicts and a communicator counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace titan {

enum class Collective : uint8_t { all_gather, reduce_scatter, all_reduce, permute };
inline constexpr size_t kCollectives = 4;
std::string_view name(Collective kind);

/// Traffic of a communicator: calls (a list of tensors is one call) and bytes of the full tensors: the output of an
/// all-gather, the input of a reduce-scatter, the tensor of an all-reduce, the sent tensors of a permute.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;

  Traffic& operator+=(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};
using TrafficTable = std::array<Traffic, kCollectives>;

/// Bytes that one rank of `ranks` sends for `traffic` with ring algorithms, which are optimal:
/// (n−1)/n of the tensors for all-gather and reduce-scatter, twice that for all-reduce, all of it for a permute.
double sent_bytes(Collective kind, const Traffic& traffic, int64_t ranks);

}  // namespace titan
