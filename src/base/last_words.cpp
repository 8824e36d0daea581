#include "titan/base/last_words.h"

#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace titan {

struct LastWords::State {
  std::mutex mutex;  // held while the words are said
  std::function<void()> words;
};

LastWords::LastWords() : state_(std::make_shared<State>()) {}

void LastWords::say(std::chrono::milliseconds limit) const {
  const auto said = std::make_shared<std::promise<void>>();
  auto speak = [state = state_, said] {
    const std::lock_guard lock(state->mutex);
    try {
      if (const auto words = std::exchange(state->words, nullptr)) words();
    } catch (...) {  // what ends the process is on its way, and nothing here may take its place
    }
    said->set_value();
  };
  try {
    std::thread(std::move(speak)).detach();  // nobody can wait for one that hangs
  } catch (const std::system_error&) {
    return;
  }
  said->get_future().wait_for(limit);
}

WordsToSay::WordsToSay(std::shared_ptr<LastWords> last, std::function<void()> words) : last_(std::move(last)) {
  set(std::move(words));
}

WordsToSay::~WordsToSay() { set(nullptr); }

void WordsToSay::set(std::function<void()> words) const {
  if (!last_) return;
  const std::lock_guard lock(last_->state_->mutex);
  last_->state_->words = std::move(words);
}

}  // namespace titan
