// Which option a mistyped key most likely meant.
#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "titan/base/text.h"
#include "titan/config/schema.h"

namespace titan {
namespace {

std::string_view leaf_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }
std::string_view section_of(std::string_view key) {
  size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Distance from a typed key to a known one; smaller is nearer. The right name in the wrong section counts as one edit,
/// since that is how an option that moved is usually mistyped, and so does a section that is left out.
size_t key_distance(std::string_view typed, std::string_view known) {
  constexpr size_t far = 1000;
  size_t limit = std::max<size_t>(3, typed.size() / 3);
  if (leaf_of(typed) == leaf_of(known)) return section_of(typed) == section_of(known) ? 0 : 1;
  if (section_of(typed).empty()) {
    const size_t distance = edit_distance(typed, leaf_of(known));
    if (distance <= std::max<size_t>(1, typed.size() / 3)) return distance + 1;
  }
  size_t length_gap = typed.size() > known.size() ? typed.size() - known.size() : known.size() - typed.size();
  if (length_gap > limit) return far;
  size_t distance = edit_distance(typed, known);
  return distance <= limit ? distance : far;
}

std::vector<std::string> best_of(std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked, size_t limit) {
  std::stable_sort(ranked.begin(), ranked.end());
  std::vector<std::string> best;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) best.push_back(std::get<3>(ranked[i]));
  return best;
}

}  // namespace

std::vector<std::string> Schema::suggest(std::string_view key, size_t limit) const {
  std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked;
  auto consider = [&](const std::string& known, size_t former) {
    size_t distance = key_distance(key, known);
    // Among equals: the one that shares the longer beginning, then today's spelling.
    if (distance < 1000)
      ranked.emplace_back(distance, 1000 - std::min<size_t>(1000, common_prefix(key, known)), former, known);
  };
  for (const Option& option : options_) consider(option.key, 0);
  for (const Alias& alias : aliases_) consider(alias.key, 1);
  return best_of(std::move(ranked), limit);
}

std::vector<std::string> Schema::suggest_section(std::string_view name) const {
  std::vector<std::string> names;
  for (const SectionInfo& section : sections_) names.push_back(section.name);
  return nearest(name, names, 1);
}

}  // namespace titan
