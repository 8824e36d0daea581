#include "titan/plan/recompute_policy.h"

#include "titan/base/error.h"

namespace titan {

std::string_view name(ResultKind kind) {
  constexpr std::array<std::string_view, kResultKinds> names{"norm",      "linear",   "rotary",
                                                             "attention", "residual", "activation"};
  return names[static_cast<size_t>(kind)];
}

RecomputePolicy& RecomputePolicy::set(ResultKind kind, int ordinal, Keep keep) {
  TITAN_CHECK(ordinal >= 0 && ordinal < static_cast<int>(kOrdinals), name(kind), ordinal);
  table_[static_cast<size_t>(kind)][static_cast<size_t>(ordinal)] = keep;
  return *this;
}

}  // namespace titan
