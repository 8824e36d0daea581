#include "generation.h"

#include <fmt/format.h>

namespace titan::detail {

GenerationChoice decide_generation(const std::vector<Given>& given, std::vector<Problem>& problems) {
  std::string asked = "auto";
  std::string asked_where;
  const Given* early = nullptr;
  const Given* early_that_stayed = nullptr;
  const Given* late = nullptr;
  for (const Given& one : given) {
    if (one.option->key == "job.generation") {
      asked = std::get<std::string>(one.value);
      asked_where = one.key_place.to_string();
    }
    if (one.level != Level::file) continue;
    // A December spelling that this program still has as an option of its own may stand beside later ones.
    bool stayed = one.alias == nullptr && one.option->write;
    if (one.era() == Era::early && stayed && early_that_stayed == nullptr) early_that_stayed = &one;
    if (one.era() == Era::early && !stayed && early == nullptr) early = &one;
    if (one.era() == Era::later && late == nullptr) late = &one;
  }
  if (asked == "2024") return {Generation::december_2024, "asked for at " + asked_where};
  if (asked == "2026") return {Generation::last_2026, "asked for at " + asked_where};
  if (early != nullptr && late != nullptr) {
    const Given& second = early->key_place.line > late->key_place.line ? *early : *late;
    const Given& first = &second == early ? *late : *early;
    auto era = [](const Given& one) { return one.era() == Era::early ? "December 2024" : "later"; };
    problems.push_back({second.key_place, "job.generation",
                        fmt::format("{} is a {} spelling, but {} at {} is a {} one", second.spelling(), era(second),
                                    first.spelling(), first.key_place.to_string(), era(first)),
                        "spell the file one way, or set job.generation = \"2024\" or \"2026\"", Severity::error});
    return {Generation::last_2026, "the file mixes spellings"};
  }
  auto decided_by = [](const Given& one, const char* what) {
    return fmt::format("{} at {} is {}", one.spelling(), one.key_place.to_string(), what);
  };
  const Given* december = early != nullptr ? early : late == nullptr ? early_that_stayed : nullptr;
  if (december != nullptr)
    return {Generation::december_2024, decided_by(*december, "a spelling that only December 2024 knew")};
  if (late != nullptr) return {Generation::last_2026, decided_by(*late, "a later spelling than December 2024's")};
  return {Generation::last_2026, "the file has no spelling that only December 2024 knew"};
}

}  // namespace titan::detail
