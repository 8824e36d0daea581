#include "life_question.h"

#include <algorithm>

#include "ending.h"

namespace titan {
namespace {

/// Looks that are further apart than this were not kept apart by the watcher's own waiting.
constexpr std::chrono::seconds kLongestLook{3};

}  // namespace

void LifeQuestion::ask(Deadline now, std::chrono::milliseconds patience) {
  open_ = true;
  since_ = looked_at_ = now;
  until_ = now + std::max<std::chrono::milliseconds>(patience / 2, kSignOfLifeLimit);
}

bool LifeQuestion::is_overdue(Deadline now) {
  if (!open_) return false;
  const auto unseen = now - looked_at_;
  looked_at_ = now;
  if (unseen > kLongestLook) until_ += unseen;
  return now >= until_;
}

std::chrono::seconds LifeQuestion::open_for(Deadline now) const {
  return std::chrono::round<std::chrono::seconds>(now - since_);
}

}  // namespace titan
