// The store that ranks share after they have met.
#include "src/distributed/rank_store.h"

#include <gtest/gtest.h>

#include <future>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "meeting.h"

namespace titan {
namespace {

using test::kRendezvousPatience, test::launch_of, test::meet, test::Met, test::part, test::ports;

/// Two ranks that have met.
class RankStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<uint16_t> at = ports();
    auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
    zero_ = meet(launch_of(0, 2, at), kRendezvousPatience).get();
    one_ = other.get();
    ASSERT_EQ(zero_.error + one_.error, "");
  }
  void TearDown() override { part(zero_, one_); }
  c10d::Store& zero() const { return *zero_.rendezvous.world.store; }
  c10d::Store& one() const { return *one_.rendezvous.world.store; }

 private:
  Met zero_, one_;
};

TEST_F(RankStoreTest, AKeyIsWaitedForOnEitherSideUntilTheOtherSetsIt) {
  for (const auto& [waits, sets] : {std::pair{&one(), &zero()}, {&zero(), &one()}}) {
    const std::string key = waits == &zero() ? "a" : "b";
    auto got = std::async(std::launch::async, [&, waits = waits] { return waits->get_to_str(key); });
    EXPECT_EQ(got.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    sets->set(key, "value");
    EXPECT_EQ(got.get(), "value");
    EXPECT_TRUE(waits->check({key}));
    EXPECT_TRUE(waits->deleteKey(key));
    EXPECT_FALSE(sets->check({key}));
  }
}

TEST_F(RankStoreTest, EveryWaitEndsAtItsLimitAndTheStoreGoesOn) {
  for (c10d::Store* store : {&zero(), &one()}) {
    EXPECT_THROW(store->wait({"never"}, std::chrono::milliseconds(10)), c10::DistStoreError);
    const c10::intrusive_ptr<c10d::Store> copy = store->clone();
    copy->setTimeout(std::chrono::milliseconds(10));
    EXPECT_THROW(copy->get("never"), c10::DistStoreError);
    EXPECT_GT(store->getTimeout(), std::chrono::seconds(1)) << "the copy's limit is its own";
    EXPECT_EQ(store->add("count", 2), store == &zero() ? 2 : 4);
  }
  EXPECT_EQ(zero().get_to_str("count"), "4");
}

TEST_F(RankStoreTest, BytesOfAnyKindAndNumberArriveAsTheyAre) {
  std::vector<uint8_t> bytes(3000000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  one().set("from one", bytes);
  zero().set("from zero", bytes);
  EXPECT_EQ(zero().get("from one"), bytes);
  EXPECT_EQ(one().get("from zero"), bytes);
  one().set("empty", std::vector<uint8_t>());
  EXPECT_EQ(zero().get("empty"), std::vector<uint8_t>());
}

TEST_F(RankStoreTest, WhatIsLongerThanALineIsRefusedInItsOwnWordsAndTheStoreGoesOn) {
  const std::vector<uint8_t> longest(31 << 20), longer(33 << 20);
  for (c10d::Store* store : {&zero(), &one()}) {
    try {
      store->set("long", longer);
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::launcher);
      EXPECT_TRUE(std::string(error.what()).starts_with("34603012 bytes for long are more than")) << error.what();
    }
    store->set("", longest);
    EXPECT_EQ((store == &zero() ? one() : zero()).get("").size(), longest.size());
  }
}

TEST_F(RankStoreTest, CompareSetAndAppendWorkAsInTheLibrarysStores) {
  EXPECT_EQ(one().compareSet("key", "other", "new"), "other") << "missing, and something was expected";
  EXPECT_FALSE(zero().check({"key"}));
  EXPECT_EQ(one().compareSet("key", "", "first"), "first");
  EXPECT_EQ(zero().compareSet("key", "other", "second"), "first");
  EXPECT_EQ(one().compareSet("key", "first", "second"), "second");
  EXPECT_EQ(zero().getNumKeys(), 1);
  EXPECT_EQ(one().getNumKeys(), 1);
}

}  // namespace
}  // namespace titan
