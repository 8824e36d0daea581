#include "life_question.h"

#include <algorithm>

#include "ending.h"

namespace titan {
namespace {

/// The watcher waits for a second at most: looks that are further apart were kept apart by something else.
constexpr std::chrono::seconds kLongestPause{2};

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
  if (unseen > kLongestPause) until_ += unseen;
  return now >= until_;
}

std::chrono::seconds LifeQuestion::open_for(Deadline now) const {
  return std::chrono::round<std::chrono::seconds>(now - since_);
}

}  // namespace titan
