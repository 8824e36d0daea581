#include "titan/base/last_words.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

namespace titan {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::hours kOneHour{1};

TEST(LastWords, AreSaidOnceAndByAThreadOfTheirOwn) {
  const auto last = std::make_shared<LastWords>();
  int said = 0;
  std::thread::id speaker;
  const WordsToSay words(last, [&] {
    ++said;
    speaker = std::this_thread::get_id();
  });
  last->say(kOneHour);
  last->say(kOneHour);
  EXPECT_EQ(said, 1);
  EXPECT_NE(speaker, std::this_thread::get_id());
}

TEST(LastWords, AreNotSaidOfWhatIsNoLongerThere) {
  const auto last = std::make_shared<LastWords>();
  bool said = false;
  {
    const WordsToSay words(last, [&] { said = true; });
  }
  last->say(kOneHour);
  EXPECT_FALSE(said);
  const WordsToSay nobodys(nullptr, [] {});
}

TEST(LastWords, ThatHangHoldUpTheEndOnlySoLong) {
  const auto last = std::make_shared<LastWords>();
  std::promise<void> release;
  auto words = std::make_unique<WordsToSay>(last, [&] { release.get_future().wait(); });
  last->say(1ms);       // returns although they have not been said
  last->say(kOneHour);  // and so does another, which has no more time
  release.set_value();
  words.reset();  // waits until they have
}

TEST(LastWords, ThatFailDoNotEndTheProcessBeforeItsTime) {
  const auto last = std::make_shared<LastWords>();
  const WordsToSay words(last, [] { throw std::runtime_error("no words"); });
  last->say(kOneHour);
}

}  // namespace
}  // namespace titan
