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
  last->print(kOneHour);
  last->print(kOneHour);
  EXPECT_EQ(said, 1);
  EXPECT_NE(speaker, std::this_thread::get_id());
}

TEST(FinalMessage, AreNotSaidOfWhatIsNoLongerThere) {
  const auto last = std::make_shared<FinalMessage>();
  bool said = false;
  {
    const FinalMessagePart words(last, [&] { said = true; });
  }
  last->print(kOneHour);
  EXPECT_FALSE(said);
  const FinalMessagePart nobodys(nullptr, [] {});
}

TEST(FinalMessage, ThatHangHoldUpTheEndOnlySoLong) {
  const auto last = std::make_shared<FinalMessage>();
  std::promise<void> release;
  auto words = std::make_unique<FinalMessagePart>(last, [&] { release.get_future().wait(); });
  last->print(1ms);       // returns although it has not been printed
  last->print(kOneHour);  // a second call has no time left
  release.set_value();
  words.reset();  // waits until they have
}

TEST(FinalMessage, ThatFailDoNotEndTheProcessBeforeItsTime) {
  const auto last = std::make_shared<FinalMessage>();
  const FinalMessagePart words(last, [] { throw std::runtime_error("no words"); });
  last->print(kOneHour);
}

}  // namespace
}  // namespace titan
