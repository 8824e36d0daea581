#include "titan/distributed/collective_trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace titan {
namespace {

using nlohmann::json;

std::vector<json> calls_of(const CollectiveTrace& trace) { return json::parse(trace.json()).at("calls"); }

TEST(CollectiveTrace, HoldsGroupKindBytesAndWhatHasBeenWaitedFor) {
  auto trace = std::make_shared<CollectiveTrace>(10);
  const auto communicator = make_fake_communicator("fsdp_gather", /*rank=*/1, /*size=*/2);
  EXPECT_TRUE(trace->is_empty());
  communicator->record_in(trace);
  communicator->all_gather({at::empty({6})}, {at::empty({3})})->wait();
  const Pending open = communicator->all_reduce({at::empty({5}, at::kDouble)});

  const std::vector<json> calls = calls_of(*trace);
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0].at("communicator"), "fsdp_gather");
  EXPECT_EQ(calls[0].at("rank"), 1);
  EXPECT_EQ(calls[0].at("ranks"), 2);
  EXPECT_EQ(calls[0].at("collective"), "all-gather");
  EXPECT_EQ(calls[0].at("bytes"), 24);
  EXPECT_LE(calls[0].at("waited"), calls[0].at("issued")) << "seconds before the text was made";
  EXPECT_EQ(calls[1].at("collective"), "all-reduce");
  EXPECT_EQ(calls[1].at("bytes"), 40);
  EXPECT_FALSE(calls[1].contains("waited"));
}

TEST(CollectiveTrace, NumbersTheCallsOfEveryGroupForItself) {
  auto trace = std::make_shared<CollectiveTrace>(10);
  const auto one = make_fake_communicator("tp", 0, 2), other = make_fake_communicator("pp", 0, 2);
  for (Communicator* communicator : {one.get(), other.get()}) communicator->record_in(trace);
  for (Communicator* communicator : {one.get(), one.get(), other.get(), one.get()}) {
    communicator->all_reduce({at::empty({1})})->wait();
  }
  std::vector<std::pair<std::string, int>> numbers;
  for (const json& call : calls_of(*trace)) numbers.emplace_back(call.at("communicator"), call.at("call"));
  const std::vector<std::pair<std::string, int>> wanted{{"tp", 0}, {"tp", 1}, {"pp", 0}, {"tp", 2}};
  EXPECT_EQ(numbers, wanted);
}

TEST(CollectiveTrace, KeepsTheLatestCallsAndNoOthers) {
  auto trace = std::make_shared<CollectiveTrace>(3);
  const auto communicator = make_fake_communicator("tp", 0, 2);
  communicator->record_in(trace);
  const Pending oldest = communicator->all_reduce({at::empty({1})});
  for (int i = 0; i < 4; ++i) communicator->all_reduce({at::empty({1})})->wait();
  oldest->wait();  // its place is another call's now
  const std::vector<json> calls = calls_of(*trace);
  ASSERT_EQ(calls.size(), 3);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].at("call"), i + 2);
    EXPECT_TRUE(calls[i].contains("waited"));
  }
}

TEST(CollectiveTrace, AGroupThatNobodyRecordsWorksAsBefore) {
  auto trace = std::make_shared<CollectiveTrace>(3);
  const auto communicator = make_fake_communicator("tp", 0, 2);
  communicator->record_in(trace);
  communicator->record_in(nullptr);
  communicator->all_reduce({at::empty({1})})->wait();
  EXPECT_TRUE(trace->is_empty());
  EXPECT_EQ(communicator->traffic()[static_cast<size_t>(Collective::all_reduce)].calls, 1);
}

}  // namespace
}  // namespace titan
