#include "titan/base/final_message.h"

#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct FinalMessage::State {
  std::mutex mutex;  // held while the message is printed
  std::function<void()> print;

  std::mutex timing;  // guards `until`
  std::optional<Clock::time_point> until;

  Clock::time_point ends(std::chrono::milliseconds limit) {
    const std::lock_guard lock(timing);
    if (!until) until = Clock::now() + limit;
    return *until;
  }
};

FinalMessage::FinalMessage() : state_(std::make_shared<State>()) {}

void FinalMessage::print(std::chrono::milliseconds limit) const try {
  const Clock::time_point until = state_->ends(limit);
  const auto printed = std::make_shared<std::promise<void>>();
  auto run = [state = state_, printed] {
    const std::lock_guard lock(state->mutex);
    try {
      if (const auto callback = std::exchange(state->print, nullptr)) callback();
    } catch (...) {  // the process is ending: an error here must not replace its cause
    }
    printed->set_value();
  };
  std::thread(std::move(run)).detach();  // a thread that hangs cannot be joined
  printed->get_future().wait_until(until);
} catch (const std::exception&) {  // out of memory or threads: the process ends without the message
}

FinalMessagePart::FinalMessagePart(std::shared_ptr<FinalMessage> last, std::function<void()> print)
    : last_(std::move(last)) {
  set(std::move(print));
}

FinalMessagePart::~FinalMessagePart() { set(nullptr); }

void FinalMessagePart::set(std::function<void()> print) const {
  if (!last_) return;
  const std::scoped_lock lock(last_->state_->mutex, last_->state_->timing);
  last_->state_->print = std::move(print);
  last_->state_->until.reset();
}

}  // namespace titan
