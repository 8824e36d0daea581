// The gradient parity matrix of context parallelism: every row of context_layouts.tsv against a single process.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "comparison.h"
#include "support/checkout.h"

namespace titan {
namespace {

std::vector<LayoutRow> context_rows() {
  std::ifstream file(checkout() / "tests/train/context_layouts.tsv");
  std::string line;
  std::getline(file, line);  // the head
  std::vector<LayoutRow> rows;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    LayoutRow row;
    std::string rotation, balance, documents, masks, async;
    words >> row.replicate >> row.shard >> row.context >> row.tensor >> row.layout >> rotation >> balance >>
        row.length >> documents >> masks >> row.accumulation >> row.recompute >> row.reshard >> async;
    row.rotation = rotation == "alltoall" ? Rotation::all_to_all : Rotation::all_gather;
    row.balance = balance == "none" ? LoadBalance::none : LoadBalance::head_tail;
    row.documents = documents == "yes";
    row.unequal_masks = masks == "unequal";
    row.async_tensor = async == "yes";
    rows.push_back(row);
  }
  return rows;
}

class ContextLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(ContextLayouts, TrainAsASingleProcessDoesAndSendWhatThePlanSays) { expect_as_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Matrix, ContextLayouts, ::testing::ValuesIn(context_rows()),
                         [](const auto& info) { return info.param.name(); });

TEST(ContextMatrix, HoldsBothRotationsAndBalancersFromTheSmallestLengthOnAndWithDocuments) {
  const std::vector<LayoutRow> rows = context_rows();
  std::set<std::string> names;
  for (const LayoutRow& row : rows) EXPECT_TRUE(names.insert(row.name()).second) << row.name() << " twice";
  for (int64_t context : {2, 4}) {
    for (const Rotation rotation : {Rotation::all_gather, Rotation::all_to_all}) {
      for (const LoadBalance balance : {LoadBalance::head_tail, LoadBalance::none}) {
        auto occurs = [&](const auto& condition) {
          return std::any_of(rows.begin(), rows.end(), [&](const LayoutRow& row) {
            return row.world() == context && row.context == context && row.rotation == rotation &&
                   row.balance == balance && condition(row);
          });
        };
        const int64_t smallest = SequenceSplit{context, balance}.chunks();
        EXPECT_TRUE(occurs([&](const LayoutRow& row) { return row.length == smallest; })) << context;
        EXPECT_TRUE(occurs([](const LayoutRow& row) { return row.length >= 64; })) << context;
        EXPECT_TRUE(occurs([](const LayoutRow& row) { return row.documents; })) << context;
      }
    }
  }
}

TEST(ContextLayouts, GiveTheSameInitialWeightsBitForBit) {
  LayoutRow single;
  LayoutRow row;
  row.layout = "fsdp2xcp2xtp2";
  row.shard = row.context = row.tensor = 2;
  const RankResult expected = train_ranks(single, 0)[0];
  const std::vector<RankResult> ranks = train_ranks(row, 0);
  for (const auto& [name, weight] : expected.weights) {
    EXPECT_TRUE(same_bits(ranks.back().weights.at(name), weight)) << name;
  }
}

TEST(ContextLayouts, AreAsCloseToFp32AsASingleBf16Process) {
  LayoutRow row;
  row.layout = "cp4";
  row.context = 4;
  const RankResult& wide = reference_of(row);
  row.compute = ElementType::bfloat16;
  const RankResult& narrow = reference_of(row);
  for (const Rotation rotation : {Rotation::all_gather, Rotation::all_to_all}) {
    row.rotation = rotation;
    const RankResult result = train_ranks(row, 2)[1];
    EXPECT_EQ(traffic_difference(result), "");
    for (const auto& [name, gradient] : wide.gradients) {
      EXPECT_LE(gradient_error(result.gradients.at(name), gradient),
                1.5 * gradient_error(narrow.gradients.at(name), gradient))
          << name;
    }
  }
}

/// Loses what travels between ranks of the ring.
class Deaf : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    Pending done = ForwardingCommunicator::start_transfer(receives, std::move(sends));
    done->wait();
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) tensor.zero_();
    }
    return done;
  }
};

TEST(ContextMatrix, NoticesThatGradientsOfKeysDoNotComeHome) {
  Fault fault;
  fault.communicators = [](int64_t, MeshCommunicators& communicators) {
    communicators.context = std::make_shared<Deaf>(communicators.context);
  };
  LayoutRow row;
  row.layout = "cp2";
  row.context = 2;
  const std::string found = difference(train_ranks(row, 2, fault)[0], reference_of(row));
  EXPECT_NE(found.find("gradient"), std::string::npos) << found;
}

}  // namespace
}  // namespace titan
