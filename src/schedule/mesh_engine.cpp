#include "titan/schedule/mesh_engine.h"

#include <tuple>

namespace titan {

void MeshEngine::add_rank(std::span<const Action> actions) {
  std::vector<const Action*> pointers;
  for (const Action& action : actions) pointers.push_back(&action);
  add_rank(std::move(pointers));
}

std::vector<MeshEngine::Blocked> MeshEngine::run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (advance(rank) || mesh_.moves(rank)) moved = true;
    }
  }
  std::vector<Blocked> blocked;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.next == rank.actions.size()) continue;
    const Action* whole = rank.actions[rank.next];
    Blocked& here = blocked.emplace_back(Blocked{r, rank.next, whole, whole});
    if (rank.phase != Phase::before && rank.phase != Phase::after) continue;
    here.part = &leaves(*whole)[rank.part];
    const Rule& rule = rule_of(rules_, here.part->kind);
    here.effect = &(rank.phase == Phase::before ? rule.before : rule.after)[rank.effect];
  }
  return blocked;
}

/// Runs the rank's next action as far as it can; true if anything moved.
bool MeshEngine::advance(size_t r) {
  Rank& rank = ranks_[r];
  if (rank.next == rank.actions.size()) return false;
  const Action& whole = *rank.actions[rank.next];
  const auto place = [&] { return std::tuple(rank.next, rank.phase, rank.part, rank.effect); };
  const auto start = place();
  if (rank.phase == Phase::before && apply(r, /*before=*/true)) rank.phase = Phase::work;
  if (rank.phase == Phase::work) {
    for (const Action& part : leaves(whole)) {
      const Work work = rule_of(rules_, part.kind).work;
      if (work != Work::none) mesh_.works(r, part, work);
    }
    rank.phase = Phase::after;
  }
  if (rank.phase == Phase::after && apply(r, /*before=*/false)) rank.phase = Phase::end;
  if (rank.phase == Phase::end && mesh_.ends(r, whole)) rank.phase = Phase::before, ++rank.next;
  return place() != start;
}

/// Applies what is left of the effects of all parts; false if one must wait.
bool MeshEngine::apply(size_t r, bool before) {
  Rank& rank = ranks_[r];
  const std::span<const Action> parts = leaves(*rank.actions[rank.next]);
  for (; rank.part < parts.size(); ++rank.part, rank.effect = 0) {
    const Rule& rule = rule_of(rules_, parts[rank.part].kind);
    const std::vector<Effect>& effects = before ? rule.before : rule.after;
    for (; rank.effect < effects.size(); ++rank.effect) {
      if (!mesh_.apply(r, effects[rank.effect], parts[rank.part])) return false;
    }
  }
  rank.part = rank.effect = 0;
  return true;
}

}  // namespace titan
