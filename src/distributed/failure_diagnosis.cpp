#include "failure_diagnosis.h"

#include <algorithm>

#include "ending.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// The monitoring thread polls at least every second. If two polls are further apart than this, this process was
/// stopped.
constexpr std::chrono::seconds kLongestPause{2};
/// Health checks of all ranks in a response timeout, at most: a rank that stops is found later by this part of it.
constexpr int kChecksInATimeout = 8;

}  // namespace

void HealthDeadline::ask(Deadline now, std::chrono::milliseconds response_timeout) {
  open_ = true;
  since_ = looked_at_ = now;
  until_ = now + std::max<std::chrono::milliseconds>(response_timeout / 2, kSignOfLifeLimit);
}

bool HealthDeadline::is_overdue(Deadline now) {
  if (!open_) return false;
  const auto unseen = now - looked_at_;
  looked_at_ = now;
  if (unseen > kLongestPause) until_ += unseen;
  return now >= until_;
}

std::chrono::seconds HealthDeadline::open_for(Deadline now) const {
  return std::chrono::round<std::chrono::seconds>(now - since_);
}

FailureDiagnosis::FailureDiagnosis(std::vector<std::string> names) : names_(std::move(names)) {
  for (int64_t rank = 1; rank < std::ssize(names_); ++rank) present_.insert(rank);
}

Cause FailureDiagnosis::cause_of(int64_t rank, int code, std::string_view what) const {
  return {rank, code, fmt::format("{} {}", names_[static_cast<size_t>(rank)], what)};
}

bool FailureDiagnosis::report(Cause cause, Deadline now) {
  if (cause_) return false;
  health_.close();
  if (cause.code == kPeerFailure) {
    if (suspected_) return false;
    suspected_ = std::move(cause);
    suspect_until_ = now + kTrueCauseLimit;
    return true;
  }
  // A failed rank is given time to exit first. A rank that has exited needs none; nor does rank 0, which announces it.
  const bool ends_later = cause.code != 0 && cause.rank != 0;
  announce_at_ = now + (ends_later ? kFirstToEndLimit : std::chrono::seconds(0));
  cause_ = std::move(cause);
  suspected_.reset();
  return false;
}

std::optional<Cause> FailureDiagnosis::lose(int64_t rank, Deadline now) {
  if (cause_ && cause_->rank == rank) announce_at_ = now;
  if (cause_ || suspects(rank)) return std::nullopt;
  return cause_of(rank, 0, kEndedWithoutMessage);
}

void FailureDiagnosis::excuse(int64_t rank) {
  present_.erase(rank);
  unanswered_.erase(rank);
}

void FailureDiagnosis::answer(WaitAnswer answer) {
  unanswered_.erase(answer.rank);
  if (suspected_) answers_.push_back(std::move(answer));
}

bool FailureDiagnosis::ask(int64_t asker, std::chrono::milliseconds response_timeout, Deadline now) {
  if (cause_ || suspected_ || health_.is_open()) return false;
  // All ranks that wait at a barrier ask, each at its own time. A check by every one of them would be as many messages
  // as the square of their number; an answer that is this young is good for the next one that asks.
  if (all_alive_at_ && now - *all_alive_at_ < response_timeout / kChecksInATimeout) return false;
  asker_ = asker;
  unanswered_ = present_;
  health_.ask(now, response_timeout);
  return true;
}

bool FailureDiagnosis::take_all_alive(Deadline now) {
  if (!health_.is_open() || !unanswered_.empty()) return false;
  health_.close();
  all_alive_at_ = now;
  return true;
}

std::optional<Cause> FailureDiagnosis::overdue(Deadline now) {
  if (!health_.is_overdue(now) || unanswered_.empty()) return std::nullopt;
  Cause cause = cause_of(
      *unanswered_.begin(), 0,
      fmt::format("{}; rank {} waits for the others, and the health check that it requested had no answer for {} s",
                  kNoSignOfLife, asker_, health_.open_for(now).count()));
  cause.is_silent = true;
  return cause;
}

Cause FailureDiagnosis::found_from_waits() const {
  const WaitEnd end = end_of_waits(answers_, suspected_->rank);
  if (end.rank < 0) return *suspected_;
  const std::string_view sign =
      end.answers ? "hangs: it waits for no other rank, and the others wait for it" : kNoSignOfLife;
  Cause cause = cause_of(end.rank, end.answers ? static_cast<int>(ExitCode::hang) : 0,
                         fmt::format("{}; {}", sign, suspected_->text));
  cause.is_silent = !end.answers;
  return cause;
}

const Cause* FailureDiagnosis::announced(Deadline now) {
  if (suspected_ && now >= suspect_until_) {
    cause_ = found_from_waits();
    suspected_.reset();
    announce_at_ = now;
  }
  return cause_ && now >= announce_at_ ? &*cause_ : nullptr;
}

Deadline FailureDiagnosis::next(Deadline latest) const {
  if (cause_) latest = std::min(latest, announce_at_);
  if (suspected_) latest = std::min(latest, suspect_until_);
  if (health_.is_open()) latest = std::min(latest, health_.until());
  return latest;
}

}  // namespace titan
