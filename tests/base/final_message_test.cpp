#include "titan/base/final_message.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

namespace titan {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::hours kOneHour{1};

TEST(FinalMessage, AreSaidOnceAndByAThreadOfTheirOwn) {
  const auto last = std::make_shared<FinalMessage>();
  int said = 0;
  std::thread::id speaker;
  const FinalMessagePart words(last, [&] {
    ++said;
    speaker = std::this_thread::get_id();
  });
  last->say(kOneHour);
  last->say(kOneHour);
  EXPECT_EQ(said, 1);
  EXPECT_NE(speaker, std::this_thread::get_id());
}

TEST(FinalMessage, AreNotSaidOfWhatIsNoLongerThere) {
  const auto last = std::make_shared<FinalMessage>();
  bool said = false;
  {
    const FinalMessagePart words(last, [&] { said = true; });
  }
  last->say(kOneHour);
  EXPECT_FALSE(said);
  const FinalMessagePart nobodys(nullptr, [] {});
}

TEST(FinalMessage, ThatHangHoldUpTheEndOnlySoLong) {
  const auto last = std::make_shared<FinalMessage>();
  std::promise<void> release;
  auto words = std::make_unique<FinalMessagePart>(last, [&] { release.get_future().wait(); });
  last->say(1ms);       // returns although they have not been said
  last->say(kOneHour);  // and so does another, which has no more time
  release.set_value();
  words.reset();  // waits until they have
}

TEST(FinalMessage, ThatFailDoNotEndTheProcessBeforeItsTime) {
  const auto last = std::make_shared<FinalMessage>();
  const FinalMessagePart words(last, [] { throw std::runtime_error("no words"); });
  last->say(kOneHour);
}

}  // namespace
}  // namespace titan
