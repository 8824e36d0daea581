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
  std::mutex mutex;  // held while the words are said
  std::function<void()> words;

  std::mutex timing;  // of what follows
  std::optional<Clock::time_point> until;

  Clock::time_point ends(std::chrono::milliseconds limit) {
    const std::lock_guard lock(timing);
    if (!until) until = Clock::now() + limit;
    return *until;
  }
};

FinalMessage::FinalMessage() : state_(std::make_shared<State>()) {}

void FinalMessage::say(std::chrono::milliseconds limit) const try {
  const Clock::time_point until = state_->ends(limit);
  const auto said = std::make_shared<std::promise<void>>();
  auto speak = [state = state_, said] {
    const std::lock_guard lock(state->mutex);
    try {
      if (const auto words = std::exchange(state->words, nullptr)) words();
    } catch (...) {  // what ends the process is on its way, and nothing here may take its place
    }
    said->set_value();
  };
  std::thread(std::move(speak)).detach();  // a thread that hangs cannot be joined
  said->get_future().wait_until(until);
} catch (const std::exception&) {  // no memory, no thread: the process ends without them
}

FinalMessagePart::FinalMessagePart(std::shared_ptr<FinalMessage> last, std::function<void()> words)
    : last_(std::move(last)) {
  set(std::move(words));
}

FinalMessagePart::~FinalMessagePart() { set(nullptr); }

void FinalMessagePart::set(std::function<void()> words) const {
  if (!last_) return;
  const std::scoped_lock lock(last_->state_->mutex, last_->state_->timing);
  last_->state_->words = std::move(words);
  last_->state_->until.reset();
}

}  // namespace titan
