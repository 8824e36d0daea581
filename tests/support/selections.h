// Every recompute selection a config can name, for tests that must hold for all of them.
// A policy that is added there is tested for equal gradients and predicted bytes without a test of its own.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "titan/plan/recompute_policy.h"

namespace titan {

struct NamedSelection {
  std::string name;
  RecomputeSelection selection;
};
inline void PrintTo(const NamedSelection& named, std::ostream* out) { *out << named.name; }

inline RecomputeSelection selection(RecomputeSelection::Mode mode, int64_t every = 1) { return {mode, every, {}}; }

inline RecomputeSelection parts(std::vector<std::string> names) {
  return {RecomputeSelection::Mode::selective_parts, 1, std::move(names)};
}

/// Every selection: the named modes, each finer part, every pair of parts and all of them.
inline std::vector<NamedSelection> all_selections() {
  using Mode = RecomputeSelection::Mode;
  std::vector<NamedSelection> all{{"none", selection(Mode::none)},
                                  {"full", selection(Mode::full)},
                                  {"selective 1", selection(Mode::selective_layers, 1)},
                                  {"selective 2", selection(Mode::selective_layers, 2)},
                                  {"selective op", selection(Mode::selective_operations)}};
  const std::vector<std::string> names{"norm", "swiglu", "ffn", "qkv", "attention"};
  for (size_t i = 0; i < names.size(); ++i) {
    all.push_back({names[i], parts({names[i]})});
    for (size_t j = i + 1; j < names.size(); ++j)
      all.push_back({names[i] + "+" + names[j], parts({names[i], names[j]})});
  }
  all.push_back({"no part", parts({})});
  all.push_back({"every part", parts(names)});
  return all;
}

}  // namespace titan
