#include "titan/plan/collective.h"

namespace titan {

std::string_view name(Collective kind) {
  constexpr std::array<std::string_view, kCollectives> names{"all-gather", "reduce-scatter", "all-reduce", "permute"};
  return names[static_cast<size_t>(kind)];
}

Traffic& Traffic::operator+=(const Traffic& other) {
  calls += other.calls;
  bytes += other.bytes;
  return *this;
}

double sent_bytes(Collective kind, const Traffic& traffic, int64_t ranks) {
  if (kind == Collective::permute) return static_cast<double>(traffic.bytes);
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return static_cast<double>(traffic.bytes) * share * (kind == Collective::all_reduce ? 2 : 1);
}

}  // namespace titan
